//! Output folders: new folders that appear only when complete, and folders to which files are
//! added.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::open::FileKind;
use crate::output::{OutputError, folder_of, names_beside, rename, sync_folder};
use crate::text::STANDARD;

/// Mode of a new folder, before the user's mask (`umask`).
const NEW_FOLDER: u32 = 0o777;

/// A new output folder. It is created under a temporary name next to its path, and renamed when all
/// its files are on the disk.
#[derive(Debug)]
pub struct NewFolder {
    place: PathBuf,
    aside: TempDir,
    /// Names of its subfolders.
    folders: Vec<&'static str>,
}

impl NewFolder {
    /// Creates the temporary folder. It is created before the files are computed, so that an
    /// unwritable path is reported early.
    ///
    /// # Errors
    /// Fails if the path names something other than an empty folder, or if the system returns an
    /// error.
    pub fn create(place: &Path) -> Result<NewFolder, OutputError> {
        let failed = OutputError::io(place, "create");
        if place.as_os_str() == STANDARD {
            return Err(OutputError::NoStream { kind: "folder" });
        }
        if place.file_name().is_none() {
            return Err(OutputError::NoName { path: place.into() });
        }
        let empty = || Ok(fs::read_dir(place)?.next().is_none());
        match fs::symlink_metadata(place) {
            Ok(there) if FileKind::from_metadata(&there) == Some(FileKind::Folder) && empty().map_err(&failed)? => {}
            Ok(_) => return Err(OutputError::FolderIsThere { path: place.into() }),
            // The error names the parent folder, because the user does not know the name of the
            // temporary folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::metadata(folder_of(place)).map_err(&failed)?;
            }
            Err(error) => return Err(failed(error)),
        }
        let aside = names_beside(place).folder_in(folder_of(place), NEW_FOLDER).map_err(failed)?;
        Ok(NewFolder { place: place.into(), aside, folders: Vec::new() })
    }

    /// Creates a subfolder. [`NewFolder::put`] can then write files whose names begin with `name`
    /// and a slash.
    ///
    /// # Errors
    /// Returns the system's error if the subfolder cannot be created.
    pub fn folder(&mut self, name: &'static str) -> Result<(), OutputError> {
        fs::create_dir(self.aside.path().join(name)).map_err(OutputError::io(&self.place.join(name), "create"))?;
        self.folders.push(name);
        Ok(())
    }

    /// Writes a file into the folder, under a name relative to it.
    ///
    /// # Errors
    /// Returns the system's error if the file cannot be written.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<(), OutputError> {
        #[expect(clippy::disallowed_methods, reason = "a new file in a folder of our own")]
        let written = fs::File::create_new(self.aside.path().join(name)).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(OutputError::io(&self.place.join(name), "write"))
    }

    /// Renames the temporary folder to its path.
    ///
    /// # Errors
    /// Fails if a file or folder was created at the path meanwhile, or if the system returns an
    /// error. The new folder is then removed.
    pub fn finish(self) -> Result<(), OutputError> {
        // The system's rename replaces an empty folder, but fails for a folder with files.
        let done = (self.folders.iter().try_for_each(|name| sync_folder(&self.aside.path().join(name))))
            .and_then(|()| sync_folder(self.aside.path()))
            .and_then(|()| rename(self.aside.path(), &self.place))
            .map_err(OutputError::io(&self.place, "create"));
        done?;
        // The folder has its final name now, so it is not removed.
        let _ = self.aside.keep();
        sync_folder(folder_of(&self.place)).map_err(OutputError::io(&self.place, "create"))
    }
}

/// A folder for output files, which may already exist. If this program created the folder and it is
/// still empty at the end, it is removed.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    /// Whether this program created the folder.
    made: bool,
}

impl OutputFolder {
    /// Opens the folder, or creates it if it does not exist.
    ///
    /// # Errors
    /// Fails if the path names something other than a folder, or if the system returns an error.
    pub fn open(path: &Path) -> Result<OutputFolder, OutputError> {
        let made = match fs::create_dir(path) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => false,
            Err(error) => return Err(OutputError::io(path, "create")(error)),
        };
        Ok(OutputFolder { path: path.into(), made })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if self.made {
            // Removing fails if the folder contains files, so the folder then stays.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_folder_is_complete_or_absent() {
        let scratch = tempfile::tempdir().unwrap();
        let place = scratch.path().join("export");
        let count = || fs::read_dir(scratch.path()).unwrap().count();
        let mut begun = NewFolder::create(&place).unwrap();
        begun.put("a", b"1").unwrap();
        assert!(begun.put("a", b"2").is_err());
        assert!(begun.put("b/a", b"2").is_err());
        begun.folder("b").unwrap();
        begun.put("b/a", b"2").unwrap();
        drop(begun);
        assert_eq!(count(), 0);
        fs::create_dir(&place).unwrap();
        let begun = NewFolder::create(&place).unwrap();
        begun.put("a", b"1").unwrap();
        begun.finish().unwrap();
        assert_eq!((count(), fs::read(place.join("a")).unwrap()), (1, b"1".to_vec()));
        assert!(matches!(NewFolder::create(&place), Err(OutputError::FolderIsThere { .. })));
        std::os::unix::fs::symlink(&place, scratch.path().join("link")).unwrap();
        assert!(NewFolder::create(&scratch.path().join("link")).is_err());
        let late = NewFolder::create(&scratch.path().join("late")).unwrap();
        fs::write(scratch.path().join("late"), "x").unwrap();
        assert!(late.finish().is_err());
        assert_eq!(count(), 3);
    }

    #[test]
    fn empty_kept_folder_is_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x.d");
        drop(OutputFolder::open(&path).unwrap());
        assert!(!path.exists());
        let kept = OutputFolder::open(&path).unwrap();
        fs::write(path.join("a"), "").unwrap();
        drop(kept);
        assert!(path.join("a").exists());
        fs::remove_file(path.join("a")).unwrap();
        drop(OutputFolder::open(&path).unwrap());
        assert!(path.exists());
        assert!(OutputFolder::open(&scratch.path().join("no/folder")).is_err());
    }
}
