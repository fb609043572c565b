//! `ixc kernel`: single kernels, for people who write and tune them.

mod bench;
mod choice;
mod cost;
mod diff;
mod export;
mod list;
mod reduce;
mod replay;
mod run;
mod show;
mod tune;

use std::io::Write;

use clap::Subcommand;

/// Lists, shows, runs and measures single kernels.
#[derive(Debug, clap::Args)]
#[command(after_help = "A kernel is named by
  a built-in row        gemm_q4_k (`ixc kernel list`)
  a spec                linear format=q4_k k=2048 tile=32 n=2048 shape=gemm
  a file of kernel IR   experiment.ix
  a model's kernel      model.gguf:gemm_q6_k, plan.ixp:attention, demo:route

EXAMPLES:
  ixc kernel list gemm --target amx
  ixc kernel show gemv_q4_k --target zen4 --stage asm
  ixc kernel run gemm_q4_k --rows 33 --target avx512 --emulate
  ixc kernel cost gemm_q4_k --target zen4
  ixc kernel diff edited.ix
  ixc kernel tune gemv_q4_k_r16
  ixc kernel reduce broken.ix -o small.ix
  ixc kernel export gemm_q4_k --target amx -o gemm.kernel")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    List(list::Args),
    Show(show::Args),
    Run(run::Args),
    Bench(bench::Args),
    Cost(cost::Args),
    Diff(diff::Args),
    Tune(tune::Args),
    Reduce(reduce::Args),
    Export(export::Args),
    Replay(replay::Args),
}

impl Args {
    /// Runs the command.
    pub fn run(self, out: &mut dyn Write) -> anyhow::Result<()> {
        match self.action {
            Action::List(args) => args.run(out),
            Action::Show(args) => args.run(out),
            Action::Run(args) => args.run(out),
            Action::Bench(args) => args.run(out),
            Action::Cost(args) => args.run(out),
            Action::Diff(args) => args.run(out),
            Action::Tune(args) => args.run(out),
            Action::Reduce(args) => args.run(out),
            Action::Export(args) => args.run(out),
            Action::Replay(args) => args.run(out),
        }
    }
}
