//! Options of the cache of compiled plans, for commands that compile to run, and for `ixc cache`.

use std::path::PathBuf;

use ixc_generate::plan_cache::{PlanCache, default_folder};

use super::Usage;
use super::size::Size;

/// Folder and limit of the cache.
#[derive(Clone, Debug, clap::Args)]
pub struct CacheFolder {
    /// Folder of the cache of compiled plans [default: `plans` in $XDG_CACHE_HOME/ixc or
    /// ~/.cache/ixc].
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Max size of the cache of compiled plans; the plans that were not used for the longest time
    /// are removed [default: 1GiB, at most a tenth of the free space].
    #[arg(long, value_name = "SIZE")]
    cache_limit: Option<Size>,
}

impl CacheFolder {
    /// Returns the cache, if there is a folder for it.
    pub fn find(&self) -> Option<PlanCache> {
        let folder = self.cache_dir.clone().or_else(default_folder)?;
        Some(PlanCache::new(folder, self.cache_limit.map(|size| size.0)))
    }

    /// Returns the cache.
    ///
    /// # Errors
    /// If there is no folder for it.
    pub fn cache(&self) -> Result<PlanCache, Usage> {
        let problem = "there is no folder for the cache: neither XDG_CACHE_HOME nor HOME is set; give --cache-dir";
        self.find().ok_or_else(|| Usage(problem.to_owned()))
    }
}

/// Whether a command uses the cache, and which one.
#[derive(Clone, Debug, clap::Args)]
pub struct PlanCacheChoice {
    /// Compile the model even if its plan is cached, and do not cache the plan (`ixc cache`).
    #[arg(long)]
    no_cache: bool,
    #[command(flatten)]
    folder: CacheFolder,
}

impl PlanCacheChoice {
    /// Returns the cache, unless it is off or has no folder.
    pub fn cache(&self) -> Option<PlanCache> {
        if self.no_cache { None } else { self.folder.find() }
    }
}
