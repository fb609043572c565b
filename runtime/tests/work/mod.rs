//! Tests of plans whose kernels do more work than their model can need. They are refused by the
//! plan check, before any kernel runs.

use ixc_ir::kernel::{Affine, Atom, DimId, For, Kernel, Stmt, VarId};
use ixc_ir::plan::{Plan, Source, Step};
use ixc_runtime::engine::{Engine, EngineOptions};
use ixc_runtime::load::{LoadError, verify};
use ixc_runtime::program::work::{TokenWork, check};
use ixc_runtime::program::{PlanError, Problem};

use crate::tiny::{self, Folder};

/// Puts the body of a kernel into a loop, so that its work is repeated.
fn repeat(kernel: &mut Kernel, trip: Affine) {
    let var = VarId(kernel.vars.len() as u32);
    kernel.vars.push(format!("again{}", var.0));
    let body = std::mem::take(&mut kernel.body);
    kernel.body = vec![Stmt::For(For { var, trip, carries: Vec::new(), body })];
}

/// Loads a plan that must be refused. Returns its work, as the error states it.
fn refused(folder: &Folder, plan: &Plan<Kernel>) -> TokenWork {
    let problem = |error| match error {
        LoadError::Plan(PlanError { problem: Problem::Work { found, max, .. }, .. }) => {
            TokenWork { statements: found, limit: max }
        }
        other => panic!("{other}"),
    };
    problem(verify(plan).unwrap_err());
    problem(Engine::load(plan.clone(), &folder.0, &EngineOptions::default()).unwrap_err())
}

#[test]
fn plan_with_endless_loops_is_refused() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let TokenWork { statements, limit } = check(&plan, plan.context_length).unwrap();
    assert!(0 < statements && statements < limit / 8, "{statements} of {limit}");
    let rounds = i64::try_from(limit).unwrap();
    for kernel in 0..plan.kernels.len() {
        // A kernel that no task calls causes no work.
        let mut once = plan.clone();
        repeat(&mut once.kernels[kernel], Affine::constant(2));
        if check(&once, plan.context_length).unwrap().statements == statements {
            continue;
        }
        let mut constant = plan.clone();
        repeat(&mut constant.kernels[kernel], Affine::constant(rounds.min(Affine::MAX_CONSTANT)));
        assert!(refused(&folder, &constant).statements > limit);
        let mut empty = plan.clone();
        let body = std::mem::take(&mut empty.kernels[kernel].body);
        repeat(&mut empty.kernels[kernel], Affine::constant(rounds.min(Affine::MAX_CONSTANT)));
        empty.kernels[kernel].body.extend(body);
        assert!(refused(&folder, &empty).statements > limit);
        let mut nested = plan.clone();
        (0..4).for_each(|_| repeat(&mut nested.kernels[kernel], Affine::constant(1 << 30)));
        assert_eq!(refused(&folder, &nested).statements, u64::MAX);
        if !plan.kernels[kernel].dims.is_empty() {
            let mut by_dim = plan.clone();
            let trip = Affine { constant: 0, terms: vec![(Atom::Dim(DimId(0)), 1 << 38)] };
            repeat(&mut by_dim.kernels[kernel], trip);
            assert!(refused(&folder, &by_dim).statements > limit);
        }
    }
}

/// Tests that weights that no task uses, and weights with the same bytes, do not raise the limit of
/// work.
#[test]
fn repeated_weights_do_not_raise_the_limit() {
    let folder = Folder::new();
    let plan = tiny::plan(&folder.0);
    let limit = |plan: &Plan<Kernel>| check(plan, plan.context_length).unwrap().limit;
    let expected = limit(&plan);
    let mut unused = plan.clone();
    (0..1000).for_each(|_| unused.weights.push(plan.weights[0].clone()));
    assert_eq!(limit(&unused), expected);
    // Each task uses its own weight, but all weights have the same bytes.
    let mut repeated = plan.clone();
    for step in &mut repeated.steps {
        let Step::Run { tasks, .. } = step else { continue };
        for arg in tasks.iter_mut().flat_map(|task| &mut task.args) {
            if let Source::Weight(number) = &mut arg.source {
                repeated.weights.push(plan.weights[*number as usize].clone());
                *number = repeated.weights.len() as u32 - 1;
            }
        }
    }
    assert_eq!(limit(&repeated), expected);
}
