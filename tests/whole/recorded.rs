//! Snapshots of whole outputs of the program: errors, a listing, and reports. If wording or layout
//! changes, `INSTA_UPDATE=always` rewrites the snapshots; review the diff afterwards.

use crate::support::{ixc, scratch, stderr, stdout};

/// Command lines with errors of every kind: in options, models, IR text, kernels and passes.
const WRONG: &[&[&str]] = &[
    &["run", "missing.gguf", "-p", "x"],
    &["run", "model.txt", "-p", "x"],
    &["run", "-p", "x", "--temp", "1001"],
    &["run", "-p", "x", "-c", "99999999"],
    &["run", "-p", "x", "-c", "99999999999"],
    &["run", "-p", ""],
    &["compile", "model.txt", "-o", "out.ixp"],
    &["dump", "--after", "pak"],
    &["dump", "--set", "tile.rows=3"],
    &["dump", "--set", "pack.weights=perhaps"],
    &["dump", "--target", "avx2", "--after", "tile", "--tile", "blk.*.attn_q.weight: rows=7"],
    &["dump", "--target", "avx2", "--after", "tile", "--tile", "nothing: rows=16"],
    &["opt", "broken.ix"],
    &["opt", "untyped.ix"],
    &["kernel", "show", "gemw_q4_k"],
    &["kernel", "show", "softcap n=4 cap=-1.0", "--target", "avx2"],
    &["kernel", "bench", "gemm_q4_k", "gemv_q4_k"],
    &["kernel", "run", "broken.ix"],
    &["logits", "--tokens", "1,-2"],
];

#[test]
fn errors() {
    let folder = scratch("recorded");
    let files = [
        ("model.txt", "no model\n"),
        ("broken.ix", "func @step(%ids: i32[T]) -> (f32[L, 4]) {\n  %x = embd %ids, @table\n}\n"),
        (
            "untyped.ix",
            "weight @w : f32[8, 4]\nfunc @step(%ids: i32[T], %pos: i32[T], %rows: i32[L]) -> (f32[T, 4]) {\n  \
             %x = embed %ids, @w : f32[T, 5]\n  return %x\n}\n",
        ),
    ];
    files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
    let mut text = String::new();
    for wrong in WRONG {
        // Clap's usage line would also show options that were set by variables.
        let output = ixc(*wrong).env_remove("IXC_NO_CACHE").current_dir(&folder).output().unwrap();
        let status = output.status.code().unwrap();
        assert!(status != 0 && output.stdout.is_empty(), "{wrong:?}: {output:?}");
        text += &format!("$ ixc {}\n{}exit status {status}\n\n", wrong.join(" "), stderr(&output));
    }
    insta::assert_snapshot!(text);
}

#[test]
fn listing() {
    for target in ["haswell", "zen4"] {
        let text = stdout(ixc(["kernel", "show", "add_bias n=24", "--stage", "asm", "--target", target]));
        insta::assert_snapshot!(format!("listing_{target}"), text);
    }
}

#[test]
fn reports() {
    insta::assert_snapshot!("inspect", stdout(ixc(["inspect"])));
    insta::assert_snapshot!("cost", stdout(ixc(["kernel", "cost", "gemm_q4_k", "--target", "zen4"])));
}
