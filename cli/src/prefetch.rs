//! Options for prefetching and caching streamed experts, for commands that run models.
//!
//! ```text
//! ixc run large.gguf --memory 6GiB --prefetch router --prefetch-extra 2 --cache s3-fifo
//! ```

use ixc_ir::kernel::Kernel;
use ixc_ir::plan::Plan;
use ixc_runtime::memory_estimate;
use ixc_runtime::streaming::cache::Kind;
use ixc_runtime::streaming::predict::{PredictionSettings, StrategyChoice};

/// Prefetching of streamed experts.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct PrefetchChoice {
    /// Prediction of the experts to read ahead, if not all fit in memory. `previous`: the experts
    /// of the previous token. `frequency`: the layer's most used experts. `router`: the choice of
    /// the next layer's router, computed one layer early. `auto`: the best of these, by
    /// measurements during the run, or none if tokens get no faster.
    #[arg(long, value_name = "HOW", default_value_t)]
    prefetch: StrategyChoice,
    /// Extra experts to predict per layer, beyond the number that a token uses. Early routers of a
    /// plan predict the number that it was compiled with.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=MAX_EXTRA))]
    prefetch_extra: u32,
}

/// Max number of extra experts: no model routes a token to more.
const MAX_EXTRA: i64 = 1024;

impl PrefetchChoice {
    /// Returns an option that was given without effect, and the reason. `mapped`: experts are in
    /// mapped files.
    pub fn without_effect(self, mapped: bool) -> Option<(&'static str, &'static str)> {
        match (self.prefetch, self.prefetch_extra) {
            (StrategyChoice::Always(_), _) if mapped => {
                Some(("--prefetch", "experts in mapped files are not read ahead"))
            }
            (_, 1..) if mapped => Some(("--prefetch-extra", "experts in mapped files are not read ahead")),
            (StrategyChoice::Off, 1..) => Some(("--prefetch-extra", "--prefetch off predicts nothing")),
            _ => None,
        }
    }

    /// Returns the options as the runtime's type.
    pub fn settings(self) -> PredictionSettings {
        PredictionSettings { choice: self.prefetch, extra: self.prefetch_extra }
    }
}

/// Early routers in a plan. Whether a run uses them is an option of the run.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct EarlyRouterChoice {
    /// Compile early routers if not all experts fit in memory. They run the next layer's router one
    /// layer early, for --prefetch router or auto [default: router]. They cost time even in runs
    /// that do not use them.
    #[arg(long, value_name = "HOW", value_enum)]
    prefetch: Option<EarlyRouters>,
    /// Extra experts that early routers predict per layer, beyond the number that a token uses.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=MAX_EXTRA))]
    prefetch_extra: u32,
}

/// Early routers in a compiled plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum EarlyRouters {
    /// No early routers.
    Off,
    /// One for each layer except the first.
    Router,
}

impl EarlyRouterChoice {
    /// Returns the number of extra experts that early routers predict, or `None` without early
    /// routers.
    pub fn extra(self) -> Option<u32> {
        (self.prefetch != Some(EarlyRouters::Off)).then_some(self.prefetch_extra)
    }

    /// Returns an option that was given but has no effect on this plan, and the reason.
    pub fn without_effect(self, plan: &Plan<Kernel>) -> Result<Option<(&'static str, &'static str)>, ixc_error::Error> {
        if let (None | Some(EarlyRouters::Off), 0) = (self.prefetch, self.prefetch_extra) {
            return Ok(None);
        }
        let why = match plan.expert_groups.len() {
            _ if memory_estimate::has_early_routers(plan)? => None,
            0 => Some(
                "this plan keeps all weights in memory; if the model has experts, --memory makes a plan that streams them",
            ),
            1 => Some("the model has only one layer with experts, so no router can run a layer early"),
            _ => Some("no router of the model can run one layer before its own"),
        };
        Ok(match (self.prefetch, self.prefetch_extra) {
            (Some(EarlyRouters::Off), 1..) => {
                Some(("--prefetch-extra", "--prefetch off makes a plan without early routers"))
            }
            (Some(EarlyRouters::Router), _) => why.map(|why| ("--prefetch router", why)),
            (None, 1..) => why.map(|why| ("--prefetch-extra", why)),
            (Some(EarlyRouters::Off) | None, _) => None,
        })
    }
}

/// Option for the eviction policy of the expert cache.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct CacheChoice {
    /// Eviction policy of the expert cache: lru, slru or s3-fifo.
    #[arg(long, value_name = "POLICY", default_value = Kind::default().name())]
    cache: Kind,
}

impl CacheChoice {
    /// Returns the option as the runtime's type.
    pub fn kind(self) -> Kind {
        self.cache
    }
}
