//! Private files of this user: the cache folder, unfinished files that later runs continue, and a
//! secret. With the secret, `ixc` can prove that it wrote a file.
//!
//! Other users may be able to write to the folder of a plan. A run continues an existing file there
//! only if it is regular, belongs to this user, and has only one name. Symbolic links and files of
//! other users are therefore never written to or trusted. These checks do not detect files that
//! other programs of this user wrote. A [`Secret`], stored in a file that only this user can read,
//! detects them.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::process::geteuid;

use crate::open::{FileKind, NotRegular, open_unlinked, regular};
use crate::output::names_beside;

/// Bytes of a secret: the length of a SipHash key.
const SECRET_BYTES: usize = 16;
/// Name of the secret's file in the user's folder.
const SECRET_FILE: &str = "secret";

/// Returns the user's cache folder, if there is one: `$XDG_CACHE_HOME/ixc` or `~/.cache/ixc`.
pub fn folder() -> Option<PathBuf> {
    folder_from(std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
}

fn folder_from(cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute(cache).or_else(|| Some(absolute(home)?.join(".cache")))?;
    Some(base.join("ixc"))
}

/// Returns this user's folder in the system's temporary folder, for data that does not belong in
/// the cache folder. Creates it if it is missing.
///
/// # Errors
/// The errors of [`private_folder`], and [`NotOurs::Link`] if a symbolic link has the folder's
/// name.
pub fn temporary_folder() -> io::Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("ixc-{}", geteuid().as_raw()));
    if fs::symlink_metadata(&folder).is_ok_and(|there| there.is_symlink()) {
        return Err(not_ours(NotOurs::Link));
    }
    private_folder(&folder)?;
    Ok(folder)
}

/// Creates a folder that only this user can open, and its missing parents. Does nothing if the
/// folder exists.
///
/// # Errors
/// Returns the system's error if the folder cannot be created.
pub fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a folder for private data, which other users cannot write to. If the folder exists,
/// checks its owner and mode.
///
/// # Errors
/// [`NotOurs`] inside an [`io::Error`] if the folder belongs to another user, or others can write
/// to it; or the system's error.
pub fn private_folder(path: &Path) -> io::Result<()> {
    create_folder(path)?;
    let there = fs::metadata(path)?;
    if there.uid() != geteuid().as_raw() {
        return Err(not_ours(NotOurs::Owner { owner: there.uid() }));
    }
    match there.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(not_ours(NotOurs::Shared { mode: there.mode() & 0o7777 })),
    }
}

/// Reason why an existing file is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOurs {
    /// A symbolic link.
    #[error("the path is a symbolic link; remove the link, or choose another path")]
    Link,
    /// A file of another user.
    #[error("the file or folder belongs to another user ({owner}); remove it, or choose another path")]
    Owner {
        /// Numeric id of the user who owns the file.
        owner: u32,
    },
    /// A file that other users can write to, or may already have open for writing.
    #[error("other users can write to the file or folder (mode {mode:o}); remove it, or choose another path")]
    Shared {
        /// Permission bits of the file.
        mode: u32,
    },
    /// A file with more than one name (hard link).
    #[error("the file has {names} names (hard links); remove this name, or choose another path")]
    Names {
        /// Number of the file's hard links.
        names: u64,
    },
}

/// Opens this user's file for reading and writing. If it does not exist, creates one that only this
/// user can open.
///
/// # Errors
/// [`NotOurs`] or [`crate::NotRegular`] inside an [`io::Error`], or the system's error.
pub fn open_own(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = regular(path, &mut options, OFlags::NOFOLLOW).map_err(|error| {
        let is_link = fs::symlink_metadata(path).is_ok_and(|there| there.is_symlink());
        if is_link { not_ours(NotOurs::Link) } else { error }
    })?;
    check_own(&file)?;
    Ok(file)
}

/// Creates a file that only this user can open, in a folder that other users can write to, such as
/// `/tmp`. Symbolic links are not followed. A file that an earlier process of this user left under
/// the name is removed first.
///
/// # Errors
/// [`NotOurs`] inside an [`io::Error`] if another user's file, or something other than a file, has
/// the name; or the system's error.
pub fn create_own(path: &Path) -> io::Result<File> {
    if let Ok(there) = fs::symlink_metadata(path) {
        if there.is_symlink() {
            return Err(not_ours(NotOurs::Link));
        }
        if let Some(found) = FileKind::from_metadata(&there) {
            return Err(NotRegular { found }.into());
        }
        if there.uid() != geteuid().as_raw() {
            return Err(not_ours(NotOurs::Owner { owner: there.uid() }));
        }
        // In a folder with the sticky bit, no other user can have replaced the file after the
        // check. In other folders, the creation below fails if the name exists again.
        fs::remove_file(path)?;
    }
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    regular(path, &mut options, OFlags::NOFOLLOW)
}

fn check_own(file: &File) -> io::Result<()> {
    let there = file.metadata()?;
    if there.uid() != geteuid().as_raw() {
        return Err(not_ours(NotOurs::Owner { owner: there.uid() }));
    }
    if there.mode() & 0o022 != 0 {
        return Err(not_ours(NotOurs::Shared { mode: there.mode() & 0o7777 }));
    }
    if there.nlink() > 1 {
        return Err(not_ours(NotOurs::Names { names: there.nlink() }));
    }
    Ok(())
}

fn not_ours(error: NotOurs) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// Random bytes that only this user's programs know.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret(pub [u8; SECRET_BYTES]);

impl Secret {
    /// Returns a new random secret.
    ///
    /// # Errors
    /// Returns the system's error if it provides no random bytes.
    pub fn random() -> io::Result<Secret> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(io::Error::other)?;
        Ok(Secret(secret))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Returns the user's secret. The first call of a user creates and stores it. Returns `None` if the
/// user has no folder for it, or other users can change that folder.
///
/// # Errors
/// Returns the system's error, or an error if other users can read the existing secret.
pub fn secret() -> io::Result<Option<Secret>> {
    folder().map_or(Ok(None), |folder| secret_in(&folder))
}

fn secret_in(folder: &Path) -> io::Result<Option<Secret>> {
    create_folder(folder)?;
    let there = fs::metadata(folder)?;
    if there.uid() != geteuid().as_raw() || there.mode() & 0o022 != 0 {
        return Ok(None);
    }
    let path = folder.join(SECRET_FILE);
    if let Some(secret) = read_secret(&path)? {
        return Ok(Some(secret));
    }
    let secret = Secret::random()?;
    let mut new = names_beside(&path).private_in(folder)?;
    new.write_all(&secret.0)?;
    new.as_file().sync_all()?;
    // If two runs create a secret at once, both use the one that was stored first.
    match new.persist_noclobber(&path) {
        Ok(_) => Ok(Some(secret)),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => read_secret(&path),
        Err(error) => Err(error.error),
    }
}

/// Reads the existing secret; `None` if there is no file. A secret that other users can read is an
/// error.
fn read_secret(path: &Path) -> io::Result<Option<Secret>> {
    let mut file = match open_unlinked(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    check_own(&file)?;
    let (there, mut secret) = (file.metadata()?, [0; SECRET_BYTES]);
    if there.mode() & 0o077 != 0 || there.len() != SECRET_BYTES as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "is no secret of ours"));
    }
    file.read_exact(&mut secret)?;
    Ok(Some(Secret(secret)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use crate::is_not_regular;

    #[test]
    fn created_files_follow_no_links_and_replace_no_others() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let mut file = create_own(&at("perf.map")).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        file.write_all(b"of an earlier process").unwrap();
        // A second call with the same name creates another file.
        let again = create_own(&at("perf.map")).unwrap();
        assert_eq!((again.metadata().unwrap().len(), file.metadata().unwrap().nlink()), (0, 0));
        fs::write(at("precious"), "kept").unwrap();
        symlink(at("precious"), at("link")).unwrap();
        symlink(at("nothing"), at("link to nothing")).unwrap();
        for name in ["link", "link to nothing"] {
            let error = create_own(&at(name)).unwrap_err();
            assert_eq!(error.get_ref().unwrap().downcast_ref::<NotOurs>(), Some(&NotOurs::Link));
        }
        assert_eq!(fs::read(at("precious")).unwrap(), b"kept");
        assert!(!at("nothing").exists());
        fs::create_dir(at("folder")).unwrap();
        assert!(is_not_regular(&create_own(&at("folder")).unwrap_err()));
        if geteuid().is_root() {
            fs::write(at("another's"), "").unwrap();
            chown(at("another's"), Some(1), None).unwrap();
            let error = create_own(&at("another's")).unwrap_err();
            assert_eq!(error.get_ref().unwrap().downcast_ref::<NotOurs>(), Some(&NotOurs::Owner { owner: 1 }));
        }
    }

    #[test]
    fn resumed_files_must_be_owned_and_have_one_link() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        let why = |name: &str| *open_own(&at(name)).unwrap_err().get_ref().unwrap().downcast_ref::<NotOurs>().unwrap();
        let file = open_own(&at("mine")).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        open_own(&at("mine")).unwrap();
        fs::set_permissions(at("mine"), fs::Permissions::from_mode(0o620)).unwrap();
        assert_eq!(why("mine"), NotOurs::Shared { mode: 0o620 });
        fs::set_permissions(at("mine"), fs::Permissions::from_mode(0o644)).unwrap();
        fs::hard_link(at("mine"), at("other name")).unwrap();
        symlink(at("mine"), at("link")).unwrap();
        symlink(at("nothing"), at("link to nothing")).unwrap();
        assert_eq!(why("mine"), NotOurs::Names { names: 2 });
        assert_eq!([why("link"), why("link to nothing")], [NotOurs::Link; 2]);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RWXU).unwrap();
        assert!(is_not_regular(&open_own(&at("pipe")).unwrap_err()));
        if geteuid().is_root() {
            fs::remove_file(at("other name")).unwrap();
            chown(at("mine"), Some(12345), None).unwrap();
            assert_eq!(why("mine"), NotOurs::Owner { owner: 12345 });
        } else {
            println!("NOT RUN: a file of another user: only root can make one");
        }
    }

    #[test]
    fn secret_is_created_once_and_must_be_private() {
        let scratch = tempfile::tempdir().unwrap();
        let folder = scratch.path().join("cache/ixc");
        let secret = secret_in(&folder).unwrap().unwrap();
        assert_eq!(secret_in(&folder).unwrap(), Some(secret));
        assert_ne!(secret_in(&scratch.path().join("other")).unwrap(), Some(secret));
        let path = folder.join(SECRET_FILE);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(secret_in(&folder).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(secret_in(&folder).unwrap(), None);
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn private_folder_must_be_inaccessible_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        private_folder(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        private_folder(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o720)).unwrap();
        assert!(private_folder(&path).unwrap_err().to_string().contains("other users can write to the file or folder"));
        fs::write(path.join("file"), "").unwrap();
        assert!(private_folder(&path.join("file")).is_err());
    }

    #[test]
    fn cache_folder_follows_environment_variables() {
        let at = |cache: &str, home: &str| folder_from(Some(cache.into()), Some(home.into()));
        assert_eq!(at("/c", "/h"), Some("/c/ixc".into()));
        assert_eq!(at("relative", "/h"), Some("/h/.cache/ixc".into()));
        assert_eq!(at("", "h"), None);
        assert_eq!(folder_from(None, None), None);
    }
}
