//! An anonymous file whose pages several mappings can share.
//!
//! The file has no name and is not on a drive: it is memory (`memfd_create`), and exists while it
//! is open or mapped. It uses memory only for pages that were written, whatever its length.
//! Punching a hole frees pages.
//!
//! Invariant: all mappings of the file are private. If a mapped page is written, the system copies
//! the page, and the file does not change.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::storage::memory::Region;

/// An anonymous file with shared pages.
#[derive(Debug)]
pub(crate) struct PageFile {
    file: File,
    /// Bytes of a page.
    page: u64,
    /// End of the file. All offsets below it are reserved.
    end: Mutex<u64>,
}

impl PageFile {
    /// Creates an empty anonymous file.
    ///
    /// # Errors
    /// Fails if the system refuses or does not support anonymous files.
    pub(crate) fn new() -> io::Result<PageFile> {
        Ok(PageFile { file: system::open()?, page: system::page_bytes()?, end: Mutex::new(0) })
    }

    /// Returns the number of bytes of a page. Offsets and lengths of mappings are multiples of it.
    pub(crate) fn page(&self) -> u64 {
        self.page
    }

    /// Returns the bytes of memory that the file uses, as the system counts them.
    #[cfg(all(test, unix))]
    pub(crate) fn resident(&self) -> u64 {
        self.file.metadata().map_or(0, |file| std::os::unix::fs::MetadataExt::blocks(&file) * 512)
    }

    /// Reserves a range of the file that was never used before, and returns its offset. The range
    /// uses no memory before it is written.
    ///
    /// # Errors
    /// Fails if the file would become longer than the system allows.
    pub(crate) fn reserve(&self, bytes: u64) -> io::Result<u64> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let at = *end;
        let next = at.checked_add(bytes).and_then(|next| next.checked_next_multiple_of(self.page));
        let next = next.filter(|next| *next <= system::longest_file()).ok_or(io::ErrorKind::FileTooLarge)?;
        self.file.set_len(next)?;
        *end = next;
        Ok(at)
    }

    /// Writes the bytes of a region to the file, at an offset.
    ///
    /// # Safety
    /// The region must be mapped, and nothing may write it meanwhile.
    ///
    /// # Errors
    /// Fails if the system refuses memory.
    #[cfg_attr(not(unix), expect(unused_variables))]
    pub(crate) unsafe fn write(&self, offset: u64, from: Region) -> io::Result<()> {
        #[cfg(unix)]
        {
            // SAFETY: the caller guarantees that the region is mapped, and so initialised, and that
            // nothing writes it.
            let bytes = unsafe { std::slice::from_raw_parts(from.base(), from.bytes() as usize) };
            std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, offset)
        }
        #[cfg(not(unix))]
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Maps pages of the file privately, in place of the pages of a region.
    ///
    /// # Safety
    /// The region must be whole pages of an anonymous mapping of the caller, and nothing may access
    /// it meanwhile. Its contents are lost.
    ///
    /// # Errors
    /// Fails if the system refuses the mapping. The region is then unchanged.
    pub(crate) unsafe fn map(&self, offset: u64, to: Region) -> io::Result<()> {
        // SAFETY: the caller guarantees the conditions under `# Safety`.
        unsafe { system::map(to, Some(FilePart { file: &self.file, offset })) }
    }

    /// Frees the memory of the pages in a range of the file. The pages must not be mapped any more.
    ///
    /// # Errors
    /// Fails if the system refuses. The pages then stay in memory.
    pub(crate) fn punch(&self, part: &Range<u64>) -> io::Result<()> {
        system::punch(&self.file, part)
    }
}

/// Maps new zero pages in place of the pages of a region.
///
/// # Safety
/// See [`PageFile::map`].
///
/// # Errors
/// Fails if the system refuses the mapping. The region is then unchanged.
pub(crate) unsafe fn renew(region: Region) -> io::Result<()> {
    // SAFETY: the caller guarantees the conditions under `# Safety`.
    unsafe { system::map(region, None) }
}

/// A file, and the offset of a part to be mapped.
struct FilePart<'f> {
    file: &'f File,
    offset: u64,
}

#[cfg(target_os = "linux")]
mod system {
    use std::fs::File;
    use std::io;
    use std::ops::Range;
    use std::os::fd::{AsRawFd, FromRawFd};

    use super::FilePart;
    use crate::storage::memory::Region;

    pub(super) fn open() -> io::Result<File> {
        let create = |flags: libc::c_uint| {
            // The system call is used directly, since glibc before 2.27 has no `memfd_create`.
            //
            // SAFETY: the name is a string that lives during the call.
            let descriptor = unsafe { libc::syscall(libc::SYS_memfd_create, c"ixc-states".as_ptr(), flags) } as i32;
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the descriptor is open, and has no other owner.
            Ok(unsafe { File::from_raw_fd(descriptor) })
        };
        // Some systems require that memory files are marked as not executable. Kernels before Linux
        // 6.3 do not know this flag.
        create(libc::MFD_CLOEXEC | libc::MFD_NOEXEC_SEAL).or_else(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => create(libc::MFD_CLOEXEC),
            _ => Err(error),
        })
    }

    pub(super) fn page_bytes() -> io::Result<u64> {
        // SAFETY: the call has only a number as argument.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes)
            .ok()
            .filter(|bytes| bytes.is_power_of_two())
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    /// Returns the maximum length of a file (`ulimit -f`). Exceeding it would raise a signal.
    pub(super) fn longest_file() -> u64 {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the structure lives during the call, which fills it.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) } == 0;
        let max = i64::MAX.cast_unsigned();
        if known { limit.rlim_cur.min(max) } else { max }
    }

    /// # Safety
    /// See [`super::PageFile::map`].
    pub(super) unsafe fn map(to: Region, file: Option<FilePart<'_>>) -> io::Result<()> {
        let too_long = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let (descriptor, offset, anonymous) = match file {
            // The mapping reserves no memory, because its pages are hardly ever written.
            Some(FilePart { file, offset }) => (file.as_raw_fd(), offset, libc::MAP_NORESERVE),
            // The flags are those of the surrounding mapping, so that the system merges both
            // mappings.
            None => (-1, 0, libc::MAP_ANONYMOUS),
        };
        let (bytes, offset) =
            (usize::try_from(to.bytes()).map_err(too_long)?, i64::try_from(offset).map_err(too_long)?);
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED | anonymous);
        // SAFETY: the caller guarantees that the region is part of its own mapping, so nothing else
        // is mapped there.
        let at = unsafe { libc::mmap(to.base().cast(), bytes, access, flags, descriptor, offset) };
        if at == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(super) fn punch(file: &File, part: &Range<u64>) -> io::Result<()> {
        let number = |n: u64| i64::try_from(n).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
        let (at, bytes) = (number(part.start)?, number(part.end.saturating_sub(part.start))?);
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the arguments are an open descriptor and numbers.
        match unsafe { libc::fallocate(file.as_raw_fd(), how, at, bytes) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use std::fs::File;
    use std::io;
    use std::ops::Range;

    use super::FilePart;
    use crate::storage::memory::Region;

    pub(super) fn open() -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn page_bytes() -> io::Result<u64> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn longest_file() -> u64 {
        0
    }

    /// Returns an error, because only Linux supports such mappings.
    ///
    /// # Safety
    /// There are no conditions: the function only returns an error.
    pub(super) unsafe fn map(_: Region, _: Option<FilePart<'_>>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn punch(_: &File, _: &Range<u64>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::storage::memory::Memory;

    #[test]
    fn shared_pages_separate_on_write_and_renew_as_zero() {
        let file = PageFile::new().unwrap();
        let page = file.page();
        let [one, two] = [(); 2].map(|()| Memory::zeroed("a test", 4 * page, false).unwrap());
        let part = |memory: &Memory, first: u64, pages: u64| memory.region().part(first * page, pages * page).unwrap();
        // SAFETY: the memory is mapped, and no other code accesses it.
        unsafe { one.region().base().write_bytes(7, 4 * page as usize) };
        assert_eq!(file.reserve(3 * page).unwrap(), 0);
        let at = file.reserve(2 * page - 5).unwrap();
        assert_eq!((at, file.reserve(1).unwrap()), (3 * page, 5 * page));
        // SAFETY: the memory is mapped, and no other code accesses it.
        unsafe {
            file.write(at, part(&one, 1, 2)).unwrap();
            file.map(at, part(&one, 1, 2)).unwrap();
            file.map(at, part(&two, 1, 2)).unwrap();
        }
        // SAFETY: the memory is mapped, and no other code accesses it.
        let byte = |memory: &Memory, at: u64| unsafe { memory.region().base().add(at as usize).read() };
        assert_eq!([0, 1, 2, 3].map(|n| byte(&two, n * page)), [0, 7, 7, 0]);
        // SAFETY: the memory is mapped, and no other code accesses it.
        unsafe { two.region().base().add(page as usize + 1).write(8) };
        assert_eq!([byte(&one, page + 1), byte(&two, page + 1), byte(&two, page)], [7, 8, 7]);
        // SAFETY: the memory is mapped, and no other code accesses it.
        unsafe { renew(part(&two, 1, 3)) }.unwrap();
        assert_eq!([1, 2, 3].map(|n| byte(&two, n * page + 1)), [0, 0, 0]);
        assert_eq!(byte(&one, 2 * page), 7);
    }

    #[test]
    fn punched_pages_are_given_back() {
        let file = PageFile::new().unwrap();
        let memory = Memory::zeroed("a test", 64 * file.page(), false).unwrap();
        // SAFETY: the memory is mapped, and no other code accesses it.
        unsafe { memory.region().base().write_bytes(1, memory.region().bytes() as usize) };
        let at = file.reserve(memory.region().bytes()).unwrap();
        // SAFETY: the memory is mapped, and no other code accesses it.
        unsafe { file.write(at, memory.region()) }.unwrap();
        assert_eq!(file.resident(), 64 * file.page());
        file.punch(&(at + 16 * file.page()..at + 64 * file.page())).unwrap();
        assert_eq!(file.resident(), 16 * file.page());
    }
}
