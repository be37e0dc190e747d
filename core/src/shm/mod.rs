//! shm.
