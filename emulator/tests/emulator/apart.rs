//! Calls of a function in its own process. A signal that ends it is then a result, and does not end
//! the tests.
//!
//! The process is a fork, so it has the same memory and the same permission to use tiles. The
//! function must write its outputs to [`Shared`] memory.

use dynasmrt::AssemblyOffset;
use dynasmrt::mmap::{ExecutableBuffer, MutableBuffer};

/// Signal that ended the process of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal(pub i32);

/// Memory that a forked process shares with its parent.
pub struct Shared {
    start: *mut u8,
    len: usize,
}

impl Shared {
    pub fn new(len: usize) -> Shared {
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the mapping is new and anonymous. No other memory is touched.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Shared { start: start.cast(), len }
    }

    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `new` made the mapping, which is borrowed as long as the result. A child that
        // writes to it has already ended.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// Machine code of a function with the signature of kernels, which takes pointers to buffers.
pub struct Function(ExecutableBuffer);

impl Function {
    pub fn new(code: &[u8]) -> Function {
        let mut memory = MutableBuffer::new(code.len()).unwrap();
        memory.set_len(code.len());
        memory.copy_from_slice(code);
        Function(memory.make_exec().unwrap())
    }

    /// Calls the function with these pointers in a new process. Returns the signal that ended the
    /// process.
    ///
    /// # Safety
    /// This CPU must have the instructions. Wrong accesses harm only the child, except in
    /// [`Shared`] memory.
    pub unsafe fn call_apart(&self, buffers: &[*mut u8]) -> Result<(), Signal> {
        let start = self.0.ptr(AssemblyOffset(0));
        // SAFETY: this is the start of code that follows the calling convention.
        let function: extern "sysv64" fn(*const *mut u8, *const i64) = unsafe { std::mem::transmute(start) };
        // SAFETY: the child calls only functions that are permitted after a fork of several
        // threads: the function, and a few system calls.
        let child = unsafe { libc::fork() };
        assert_ne!(child, -1, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: these calls prevent a core file, and Rust's signal handler between the fault
            // and the end.
            unsafe {
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
                    libc::signal(signal, libc::SIG_DFL);
                }
            }
            function(buffers.as_ptr(), std::ptr::null());
            // SAFETY: this ends the child without the parent's destructors.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: this waits for the child just made.
        let waited = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(waited, child, "waitpid: {}", std::io::Error::last_os_error());
        if libc::WIFSIGNALED(status) {
            return Err(Signal(libc::WTERMSIG(status)));
        }
        assert_eq!(libc::WEXITSTATUS(status), 0);
        Ok(())
    }
}

#[test]
fn isolated_call_returns_output_or_signal() {
    let mut shared = Shared::new(64);
    let call = |code: &[u8], shared: &mut Shared| {
        let pointers = [shared.bytes().as_mut_ptr()];
        // SAFETY: every x86-64 has these instructions.
        unsafe { Function::new(code).call_apart(&pointers) }
    };
    // mov rax, [rdi]; mov dword ptr [rax], 7; ret
    assert_eq!(call(&[0x48, 0x8b, 0x07, 0xc7, 0x00, 7, 0, 0, 0, 0xc3], &mut shared), Ok(()));
    assert_eq!(shared.bytes()[..4], [7, 0, 0, 0]);
    // ud2
    assert_eq!(call(&[0x0f, 0x0b], &mut shared), Err(Signal(libc::SIGILL)));
    // xor eax, eax; dec rax; shr rax, 1; mov eax, [rax]. The load has a non-canonical address,
    // which causes #GP, as an invalid tile configuration does.
    let wild = [0x31, 0xc0, 0x48, 0xff, 0xc8, 0x48, 0xd1, 0xe8, 0x8b, 0x00, 0xc3];
    assert_eq!(call(&wild, &mut shared), Err(Signal(libc::SIGSEGV)));
}
