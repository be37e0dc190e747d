//! Pointers to a bootstrap are bootstraps, so that a call that takes `&dyn Bootstrap` takes `&Arc<dyn Bootstrap>` as
//! well.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::Bootstrap;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::net::Secret;

/// Every method is passed on, the provided ones included: the bootstrap behind the pointer may have its own.
macro_rules! pointer {
    ($pointer:ty) => {
        impl<B: Bootstrap + ?Sized> Bootstrap for $pointer {
            fn rank(&self) -> u32 {
                (**self).rank()
            }

            fn size(&self) -> u32 {
                (**self).size()
            }

            fn send(&self, peer: u32, tag: u64, bytes: &[u8], deadline: Deadline) -> Result<()> {
                (**self).send(peer, tag, bytes, deadline)
            }

            fn recv(&self, peer: u32, tag: u64, deadline: Deadline) -> Result<Vec<u8>> {
                (**self).recv(peer, tag, deadline)
            }

            fn secret(&self) -> Option<Secret> {
                (**self).secret()
            }

            fn all_gather(&self, mine: &[u8], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
                (**self).all_gather(mine, deadline)
            }

            fn broadcast(&self, root: u32, bytes: &[u8], deadline: Deadline) -> Result<Vec<u8>> {
                (**self).broadcast(root, bytes, deadline)
            }

            fn barrier(&self, deadline: Deadline) -> Result<()> {
                (**self).barrier(deadline)
            }

            fn group_barrier(&self, ranks: &[u32], deadline: Deadline) -> Result<()> {
                (**self).group_barrier(ranks, deadline)
            }
        }
    };
}

pointer!(&B);
pointer!(Box<B>);
pointer!(Arc<B>);

#[cfg(test)]
mod tests {
    use super::*;

    /// A bootstrap whose every method can be told from the provided one.
    #[derive(Debug)]
    struct Own;

    impl Bootstrap for Own {
        fn rank(&self) -> u32 {
            3
        }

        fn size(&self) -> u32 {
            7
        }

        fn send(&self, _: u32, _: u64, _: &[u8], _: Deadline) -> Result<()> {
            Ok(())
        }

        fn recv(&self, _: u32, _: u64, _: Deadline) -> Result<Vec<u8>> {
            Ok(b"received".to_vec())
        }

        fn secret(&self) -> Option<Secret> {
            Some(Secret::from_bytes([5; 32]))
        }

        fn all_gather(&self, _: &[u8], _: Deadline) -> Result<Vec<Vec<u8>>> {
            Ok(vec![b"gathered".to_vec()])
        }

        fn broadcast(&self, _: u32, _: &[u8], _: Deadline) -> Result<Vec<u8>> {
            Ok(b"broadcast".to_vec())
        }

        fn barrier(&self, _: Deadline) -> Result<()> {
            Ok(())
        }

        fn group_barrier(&self, _: &[u32], _: Deadline) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn every_method_is_that_of_the_bootstrap_behind_the_pointer() {
        fn check(b: &impl Bootstrap) {
            let past = Deadline::after(std::time::Duration::ZERO);
            assert_eq!((b.rank(), b.size()), (3, 7));
            b.send(9, 0, b"", past).unwrap();
            assert_eq!(b.recv(9, 0, past).unwrap(), b"received");
            assert_eq!(b.secret().unwrap().expose(), &[5; 32]);
            assert_eq!(b.all_gather(b"", past).unwrap(), [b"gathered"]);
            assert_eq!(b.broadcast(9, b"", past).unwrap(), b"broadcast");
            b.barrier(past).unwrap();
            b.group_barrier(&[9], past).unwrap();
        }
        let shared: Arc<dyn Bootstrap> = Arc::new(Own);
        let boxed: Box<dyn Bootstrap> = Box::new(Own);
        check(&shared);
        check(&boxed);
        check(&&Own);
        check(&&*shared);
    }
}
