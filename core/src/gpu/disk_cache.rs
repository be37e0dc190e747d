//! Compiled kernels in a folder, by digests of what they were compiled from, and plans that were found right.
//!
//! A file is complete or absent: it is written under another name, synchronised and renamed, so that any number of processes may
//! share the folder. It begins with a digest of its content, and one that does not match counts as absent. A folder that cannot
//! be used costs one warning and no more: kernels are then compiled as without it.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest as _, Sha256};

use crate::sync::raw::{AtomicU64, Ordering};

/// The most bytes that a folder keeps: about ten thousand kernels. The files that were used least recently go first.
const LIMIT: u64 = 256 << 20;

/// Files of another layout have another magic number, and so are never read.
const MAGIC: &[u8; 8] = b"AQKERN1\n";
const HEADER: usize = MAGIC.len() + 32;

const COMPLETE: &str = "kernel";
const UNFINISHED: &str = "unfinished";

/// Longer than any write takes: an older unfinished file belongs to a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A digest of everything that the content depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of these parts. Neither their order nor the places where they meet are ambiguous.
    pub(crate) fn of(parts: &[&str]) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update((part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }

    /// Its name in the folder, without an extension.
    fn name(self) -> String {
        self.0.iter().fold(String::new(), |mut name, byte| {
            // Writing into a string cannot fail.
            let _ = write!(name, "{byte:02x}");
            name
        })
    }
}

/// Whether the name of a file begins as those of this cache: with a key.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (key, rest) = name.split_at_checked(2 * size_of::<Key>()).unwrap_or_default();
    rest.starts_with('.') && key.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// A folder of compiled kernels.
#[derive(Debug)]
pub(crate) struct DiskCache<'a> {
    folder: &'a Path,
    limit: u64,
}

impl<'a> DiskCache<'a> {
    pub(crate) fn new(folder: &'a Path) -> Self {
        Self { folder, limit: LIMIT }
    }

    /// The content kept under `key`; `None` if there is none, or if it is damaged.
    pub(crate) fn read(&self, key: Key) -> Option<Vec<u8>> {
        let path = self.path(key);
        let mut bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.complain(&error);
                return None;
            }
        };
        let (header, content) = bytes.split_at_checked(HEADER)?;
        if header != self::header(content) {
            log::debug!("{} is damaged and will be replaced", path.display());
            return None;
        }
        // Marks it as used. If that fails, it is only removed earlier than others.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        bytes.drain(..HEADER);
        Some(bytes)
    }

    /// Keeps `content` under `key`, in place of what is there.
    pub(crate) fn write(&self, key: Key, content: &[u8]) {
        if let Err(error) = self.try_write(key, content).and_then(|()| self.trim()) {
            self.complain(&error);
        }
    }

    fn try_write(&self, key: Key, content: &[u8]) -> io::Result<()> {
        // Whoever can write here decides what GPUs run.
        DirBuilder::new().recursive(true).mode(0o700).create(self.folder)?;
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{}.{number}.{UNFINISHED}", key.name(), std::process::id());
        let unfinished = self.folder.join(name);
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
            file.write_all(&header(content))?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&unfinished, self.path(key))
        })();
        written.inspect_err(|_| {
            // It may not exist; otherwise it is removed once it counts as abandoned.
            let _ = fs::remove_file(&unfinished);
        })
    }

    /// Removes the files that were used least recently until the rest is within the limit, and abandoned ones.
    fn trim(&self) -> io::Result<()> {
        let mut complete: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
        for entry in fs::read_dir(self.folder)? {
            let path = entry?.path();
            // The folder may be one that the user keeps other files in.
            if !is_ours(&path) {
                continue;
            }
            // Another process may remove it meanwhile.
            let Ok(about) = fs::metadata(&path) else { continue };
            let modified = about.modified()?;
            match path.extension().and_then(|extension| extension.to_str()) {
                Some(COMPLETE) => complete.push((modified, about.len(), path)),
                Some(UNFINISHED) if modified.elapsed().is_ok_and(|age| age > ABANDONED) => remove(&path)?,
                _ => {}
            }
        }
        let mut total: u64 = complete.iter().map(|(_, bytes, _)| bytes).sum();
        complete.sort_unstable();
        for (_, bytes, path) in complete {
            if total <= self.limit {
                break;
            }
            remove(&path)?;
            total -= bytes;
        }
        Ok(())
    }

    fn path(&self, key: Key) -> PathBuf {
        self.folder.join(key.name()).with_extension(COMPLETE)
    }

    /// Warns once in a process: every kernel meets the same trouble.
    fn complain(&self, error: &io::Error) {
        static SAID: AtomicU64 = AtomicU64::new(0);
        if SAID.swap(1, Ordering::Relaxed) == 0 {
            log::warn!(
                "compiled kernels cannot be kept in {}: {error}; make the folder writable, or give another one in AQUEDUCT_CACHE",
                self.folder.display()
            );
        }
    }
}

/// The bytes before `content`.
fn header(content: &[u8]) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (magic, digest) = header.split_at_mut(MAGIC.len());
    magic.copy_from_slice(MAGIC);
    digest.copy_from_slice(&Sha256::digest(content));
    header
}

/// Removes a file that another process may have removed.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A folder that does not exist yet, removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("aqueduct-disk-cache-{}-{name}", std::process::id())))
        }

        fn files(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn keys_tell_their_parts_apart() {
        let keys = [&["ab", "c"][..], &["a", "bc"], &["abc"], &["abc", ""]].map(Key::of);
        for (index, key) in keys.iter().enumerate() {
            assert_eq!(keys.iter().position(|other| other == key), Some(index));
        }
    }

    #[test]
    fn what_was_kept_is_found_and_replaced() {
        let folder = Folder::new("kept");
        let (cache, key) = (DiskCache::new(&folder.0), Key::of(&["k"]));
        assert_eq!(cache.read(key), None, "the folder does not exist");
        cache.write(key, b"first");
        assert_eq!(cache.read(key).as_deref(), Some(&b"first"[..]));
        cache.write(key, b"");
        assert_eq!(cache.read(key).as_deref(), Some(&b""[..]));
        assert_eq!(cache.read(Key::of(&["other"])), None);
        assert_eq!(folder.files(), [format!("{}.kernel", key.name())], "nothing unfinished is left");
    }

    /// Kernels that others can read tell them what this user runs.
    #[test]
    fn nobody_else_may_use_what_is_kept() {
        let folder = Folder::new("rights");
        let (cache, key) = (DiskCache::new(&folder.0), Key::of(&["k"]));
        cache.write(key, b"content");
        let rights = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((rights(&folder.0), rights(&cache.path(key))), (0o700, 0o600));
    }

    #[test]
    fn damage_anywhere_is_found() {
        let folder = Folder::new("damage");
        let (cache, key) = (DiskCache::new(&folder.0), Key::of(&["k"]));
        cache.write(key, b"content");
        let right = fs::read(cache.path(key)).unwrap();
        for at in 0..right.len() {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            fs::write(cache.path(key), &wrong).unwrap();
            assert_eq!(cache.read(key), None, "byte {at} is another");
            fs::write(cache.path(key), &right[..at]).unwrap();
            assert_eq!(cache.read(key), None, "cut to {at} bytes");
        }
        cache.write(key, b"content");
        assert_eq!(cache.read(key).as_deref(), Some(&b"content"[..]));
    }

    /// Below a file, no folder can be made, even by root.
    #[test]
    fn a_folder_that_cannot_be_used_is_left_alone() {
        let folder = Folder::new("unwritable");
        fs::write(&folder.0, b"a file").unwrap();
        let below = folder.0.join("below");
        let cache = DiskCache::new(&below);
        cache.write(Key::of(&["k"]), b"content");
        assert_eq!(cache.read(Key::of(&["k"])), None);
        assert_eq!(fs::read(&folder.0).unwrap(), b"a file");
        fs::remove_file(&folder.0).unwrap();
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let folder = Folder::new("limit");
        let cache = DiskCache { folder: &folder.0, limit: 3 * (HEADER as u64 + 10) };
        let keys = ["a", "b", "c"].map(|name| Key::of(&[name]));
        let aged = |key: Key, seconds| {
            let file = File::open(cache.path(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(seconds)).unwrap();
        };
        for (key, age) in keys.into_iter().zip([30, 20, 10]) {
            cache.write(key, &[7; 10]);
            aged(key, age);
        }
        assert!(cache.read(keys[0]).is_some(), "used again, it is the youngest");
        let abandoned = folder.0.join(format!("{}.1.0.unfinished", keys[0].name()));
        fs::write(&abandoned, b"").unwrap();
        let long_ago = SystemTime::now() - 2 * ABANDONED;
        File::open(&abandoned).unwrap().set_modified(long_ago).unwrap();
        // The user's own.
        let foreign = ["mine.kernel", "x.1.0.unfinished", "photo.jpg"].map(|name| folder.0.join(name));
        for path in &foreign {
            fs::write(path, vec![1; 10_000]).unwrap();
            File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        cache.write(Key::of(&["d"]), &[7; 10]);
        assert!(foreign.iter().all(|path| path.exists()));
        assert_eq!(keys.map(|key| cache.path(key).exists()), [true, false, true]);
        assert!(!abandoned.exists());
    }

    /// Writers and readers at once: a reader finds a whole content or none.
    #[test]
    fn concurrent_writers_leave_whole_files() {
        let folder = Folder::new("threads");
        let (cache, key) = (DiskCache::new(&folder.0), Key::of(&["k"]));
        std::thread::scope(|scope| {
            for value in 1..=4_u8 {
                let cache = &cache;
                scope.spawn(move || {
                    for _ in 0..20 {
                        cache.write(key, &vec![value; 1000 * usize::from(value)]);
                        let seen = cache.read(key).expect("it was written, and never removed");
                        assert!(seen.iter().all(|&byte| byte == seen[0]));
                        assert_eq!(seen.len(), 1000 * usize::from(seen[0]));
                    }
                });
            }
        });
        assert_eq!(folder.files().len(), 1);
    }

    #[test]
    fn a_file_that_could_not_be_put_in_place_is_taken_away() {
        let folder = Folder::new("failed");
        let (cache, key) = (DiskCache::new(&folder.0), Key::of(&["k"]));
        // The rename fails.
        fs::create_dir_all(cache.path(key)).unwrap();
        cache.write(key, b"content");
        assert_eq!(folder.files(), [format!("{}.kernel", key.name())]);
    }
}
