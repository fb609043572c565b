//! Release of memory that this process no longer needs: pages of the program's code, and free
//! memory of the allocator.
//!
//! Compiling a model runs code that steps never run: passes, code generation, readers of files. The
//! pages of this code, about 20 MiB, stay mapped and count as memory of the process. They are
//! released before a memory budget is divided. They stay in the system's page cache, and code that
//! runs again is mapped from there.

/// Releases pages of code and free memory of the allocator. Does nothing if the system does not
/// allow it.
pub fn release_unused() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: this is the allocator's own function, which any thread may call at any time.
    unsafe {
        libc::malloc_trim(0);
    }
    #[cfg(target_os = "linux")]
    release_code();
}

/// Releases the pages of executable code that is mapped from files.
#[cfg(target_os = "linux")]
fn release_code() {
    let read = |path: &str| ixc_files::read_system(path.as_ref()).unwrap_or_default();
    // A debugger writes breakpoints into private pages of code, which would be lost.
    let is_traced = !read("/proc/self/status").lines().any(|line| line.split_whitespace().eq(["TracerPid:", "0"]));
    if is_traced {
        return;
    }
    for (begin, end) in read("/proc/self/maps").lines().filter_map(code_of_file) {
        // SAFETY: the pages are mapped from a file, private and not writable. So the file has the
        // same bytes, and the system maps the pages again when their code runs.
        let refused = unsafe { libc::madvise(begin as *mut libc::c_void, end - begin, libc::MADV_DONTNEED) } != 0;
        if refused {
            tracing::debug!(error = %std::io::Error::last_os_error(), "pages of the program stay");
        }
    }
}

/// Returns the address range in a line of `/proc/self/maps` that describes code mapped from a file.
#[cfg(target_os = "linux")]
fn code_of_file(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_whitespace();
    let (begin, end) = words.next()?.split_once('-')?;
    let access = words.next()?;
    // In a line, the path follows offset, device and inode. Files that exist only in memory contain
    // generated code, so they are excluded.
    let path = words.nth(3).filter(|path| path.starts_with('/') && !path.starts_with("/memfd:"))?;
    let address = |text: &str| usize::from_str_radix(text, 16).ok();
    (access == "r-xp" && !path.is_empty() && !line.ends_with(" (deleted)")).then_some((address(begin)?, address(end)?))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_file_backed_code_is_released() {
        let line = |access: &str, path: &str| format!("7f00a000-7f00c000 {access} 00001000 fd:01 1234567 {path}");
        assert_eq!(code_of_file(&line("r-xp", "/usr/bin/ixc")), Some((0x7f00_a000, 0x7f00_c000)));
        for (access, path) in [
            ("r--p", "/usr/bin/ixc"),
            ("rwxp", "/usr/bin/ixc"),
            ("r-xs", "/usr/bin/ixc"),
            ("r-xp", ""),
            ("r-xp", "[vdso]"),
            ("r-xp", "/memfd:code (deleted)"),
            ("r-xp", "/usr/bin/ixc (deleted)"),
        ] {
            assert_eq!(code_of_file(&line(access, path)), None, "{access} {path}");
        }
        // The program must continue to run after the release.
        let before: Vec<u64> = (0..1000).map(|n| n * n).collect();
        release_unused();
        assert_eq!(before.iter().sum::<u64>(), 332_833_500);
    }
}
