//! Identity experts, which return their input. They are tested in memory and streamed, row by row
//! and in long steps.

use std::path::Path;

use crate::support::Golden;
use crate::support::engines::{bits, load, logits};
use ixc::compile::{CompileOptions, compile};
use ixc::ir::plan::Step;
use ixc::model::Model;
use ixc::targets::Target;
use ixc_testing::nmse::nmse;

/// Memory for experts, less than a layer's experts need. A token uses at most three experts.
const BUDGET: u64 = 96 << 10;

#[test]
fn streamed_experts_with_identities_match_resident_bits() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/expect/longcat-flash.json");
    let golden = Golden::read(&golden);
    let (model, tokens) = (Model::open(&golden.model).unwrap(), golden.tokens("prompt_tokens"));
    let options = CompileOptions { target: Some(Target::AVX2), max_tokens: Some(64), ..CompileOptions::default() };
    let resident = compile(&model, &options).unwrap().plan;
    let streamed = compile(&model, &CompileOptions { expert_memory: Some(0), ..options }).unwrap().plan;
    assert_eq!((resident.expert_groups.len(), streamed.expert_groups.len()), (0, 2));
    let buckets = |step: &&Step| matches!(step, Step::Bucket { experts: 6, top_k: 3, nobody: true, .. });
    assert_eq!(resident.steps.iter().filter(buckets).count(), 2);
    let mut engines =
        [(resident, 0), (streamed, BUDGET)].map(|(plan, budget)| load(plan, Target::AVX2, budget).unwrap());
    let mut of_one = Vec::new();
    for step in [64, 7, 1] {
        let [expected, found] = engines.each_mut().map(|engine| logits(engine, &tokens, step));
        assert_eq!(bits(&found), bits(&expected), "steps of {step}");
        of_one = expected;
    }
    // Rows computed one by one are as close to transformers' results as all rows together.
    assert!(nmse(golden.last(&of_one), &golden.exact) < golden.number("compiled_nmse_max"));
    let misses = engines[1].stream().map(|store| store.stats().groups.iter().map(|group| group.misses).sum::<u64>());
    assert!(misses.is_some_and(|misses| misses > 0), "nothing was streamed");
}
