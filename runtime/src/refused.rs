//! Simulation of forbidden system calls, for tests.

/// Makes the kernel refuse a system call of this thread, and of threads that it starts, as
/// containers and sandboxes do.
pub(crate) fn refuse(call: libc::c_long) -> std::io::Result<()> {
    // The filter program loads the number of a system call. If it is the number of `call`, the
    // third line returns EPERM; otherwise the last line allows it.
    let line = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let lines = [
        line(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        line(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        line(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: lines.len() as u16, filter: lines.as_ptr().cast_mut() };
    // SAFETY: the call has only numbers as arguments.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the program and its lines live during the call, which copies them.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
