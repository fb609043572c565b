//! seccomp filters, which decide for each system call whether it is allowed, fails or ends the
//! process.
//!
//! Three filters are active at once, and the strictest outcome counts:
//!
//! | filter | outcome | calls |
//! | --- | --- | --- |
//! | fatal | the process ends | calls that no part of the program makes: an attack |
//! | refused | `EPERM` | calls that a library may try and can do without |
//! | allowed | `ENOSYS` for all others | libraries then use older calls, so nothing hangs |
//!
//! For some roles, a further filter makes `mmap` and `mprotect` of executable memory fail with
//! `EACCES`.

use std::collections::BTreeMap;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

use crate::calls::{ALLOWED, CONDITIONS, Condition, FATAL, Group, REFUSED, Role, Test};
use crate::error::SandboxError;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "riscv64")]
const ARCHITECTURE: TargetArch = TargetArch::riscv64;

/// Calls that make memory executable if their third argument has `PROT_EXEC`.
const EXECUTABLE: [libc::c_long; 3] = [libc::SYS_mmap, libc::SYS_mprotect, libc::SYS_pkey_mprotect];

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Installs the filters of a role on all threads of this process. Threads and processes that are
/// started later inherit the filters.
///
/// # Errors
/// If the system refuses.
pub fn install(role: Role) -> Result<(), SandboxError> {
    // The filter that is installed last forbids installing further filters.
    for filter in programs(role)? {
        apply_filter_all_threads(&filter)?;
    }
    Ok(())
}

/// Returns the filters of a role in the order in which they must be installed.
fn programs(role: Role) -> Result<Vec<BpfProgram>, SandboxError> {
    let allow = SeccompAction::Allow;
    let errno = |number: i32| SeccompAction::Errno(number.unsigned_abs());
    let mut filters = vec![
        compile(rules(FATAL, role)?, allow.clone(), SeccompAction::KillProcess)?,
        compile(rules(REFUSED, role)?, allow.clone(), errno(libc::EPERM))?,
    ];
    if role.refuses_code() {
        filters.push(compile(executable()?, allow.clone(), errno(libc::EACCES))?);
    }
    // If two filters return errors for a call, the kernel uses the error of the later filter.
    let known = rules(ALLOWED, role)?.into_iter().chain(rules(REFUSED, role)?).collect();
    filters.push(compile(known, errno(libc::ENOSYS), allow)?);
    Ok(filters)
}

fn compile(rules: Rules, otherwise: SeccompAction, matched: SeccompAction) -> Result<BpfProgram, SandboxError> {
    Ok(SeccompFilter::new(rules, otherwise, matched, ARCHITECTURE)?.try_into()?)
}

/// Returns rules that match the calls of these groups.
fn rules(groups: &[Group], role: Role) -> Result<Rules, SandboxError> {
    let mut rules = Rules::new();
    for call in groups.iter().filter(|group| group.roles.contains(&role)).flat_map(Group::calls) {
        let condition = CONDITIONS.iter().find(|condition| condition.is_for(call, role));
        rules.insert(call.number, condition.map_or(Ok(Vec::new()), alternatives)?);
    }
    Ok(rules)
}

/// Returns one rule for each possible value of an argument.
fn alternatives(condition: &Condition) -> Result<Vec<SeccompRule>, SandboxError> {
    let rule = |operator, value| -> Result<SeccompRule, SandboxError> {
        let condition = SeccompCondition::new(condition.argument, SeccompCmpArgLen::Dword, operator, value)?;
        Ok(SeccompRule::new(vec![condition])?)
    };
    match condition.test {
        Test::Has(bits) => Ok(vec![rule(SeccompCmpOp::MaskedEq(bits), bits)?]),
        Test::Lacks(bits) => Ok(vec![rule(SeccompCmpOp::MaskedEq(bits), 0)?]),
        Test::OneOf(values) => values.iter().map(|value| rule(SeccompCmpOp::Eq, *value)).collect(),
        Test::ThisProcess => Ok(vec![rule(SeccompCmpOp::Eq, std::process::id().into())?]),
    }
}

/// Returns rules that match calls for executable memory.
fn executable() -> Result<Rules, SandboxError> {
    let bit = libc::PROT_EXEC.unsigned_abs().into();
    let condition = SeccompCondition::new(2, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bit), bit)?;
    let rule = SeccompRule::new(vec![condition])?;
    Ok(EXECUTABLE.iter().map(|call| (*call, vec![rule.clone()])).collect())
}
