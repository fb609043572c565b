//! Free space of file systems.

use std::io;
use std::path::Path;

/// Returns the number of bytes that this user may still write to the file system of an existing
/// path.
///
/// # Errors
/// Returns the system's error if the file system cannot be queried.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let there = rustix::fs::statvfs(path)?;
    Ok(there.f_bavail.saturating_mul(there.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_space_is_that_of_a_path() {
        let folder = tempfile::tempdir().unwrap();
        assert!(free_bytes(folder.path()).unwrap() > 0);
        assert_eq!(free_bytes(Path::new("/proc")).unwrap(), 0);
        assert_eq!(free_bytes(&folder.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
