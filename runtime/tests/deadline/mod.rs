//! Tests of steps that wait for a drive that does not answer. They end at their deadline, and later
//! steps give the same bits as before.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ixc_runtime::engine::{BackendKind, Engine, EngineOptions, StepError};
use ixc_runtime::execute::ExecuteError;
use ixc_runtime::streaming::predict::{PredictionSettings, StrategyChoice};
use ixc_targets::Target;

use super::{least, logits, options, plan_of, with_fates};
use crate::tiny::{Factors, Folder};

#[test]
fn step_that_waits_for_a_drive_ends_at_its_deadline() {
    let folder = Folder::new();
    let plan = plan_of(&folder.0, Target::PORTABLE, Factors::F32);
    let right = logits(&mut Engine::load(plan.clone(), &folder.0, &options(2, 0, BackendKind::Native)).unwrap());
    let least = least(&|budget| Engine::load(plan.clone(), &folder.0, &options(2, budget, BackendKind::Native)));
    let limit = Duration::from_secs(1);
    for threads in [1, 3] {
        let is_stuck = Arc::new(AtomicBool::new(true));
        let stuck = Arc::clone(&is_stuck);
        let options = with_fates(options(threads, least, BackendKind::Native), 1, move |_| {
            while stuck.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            Ok(u64::MAX)
        });
        let prefetch = PredictionSettings { choice: StrategyChoice::Off, extra: 0 };
        let options = EngineOptions { step_timeout: Some(limit), prefetch, ..options };
        let mut engine = Engine::load(plan.clone(), &folder.0, &options).unwrap();
        let error = engine.step(&[1, 2, 3], &[0]).unwrap_err();
        assert_eq!(error, StepError::Execute(ExecuteError::Deadline { limit }), "{threads} threads");
        assert_eq!(error.to_string(), "the step exceeded its time limit of 1 s");
        is_stuck.store(false, Ordering::Relaxed);
        assert!(logits(&mut engine) == right, "{threads} threads");
    }
}
