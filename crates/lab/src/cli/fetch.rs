//! `fetch`: fills the cache ahead of time.

use std::process::ExitCode;

use super::{Failure, Stderr};
use crate::fetch::{Busybox, Cache, FetchError, Kernel, Qemu, SERIES, Say as _};

/// Arguments of `fetch`.
#[derive(Debug, clap::Args)]
pub(super) struct FetchArgs {
    /// Kernel series to fetch; may be repeated [default: all]
    #[arg(long = "kernel", value_name = "SERIES")]
    kernels: Vec<String>,
}

pub(super) fn run(args: &FetchArgs) -> Result<ExitCode, Failure> {
    let all = SERIES.map(str::to_owned).to_vec();
    let kernels = if args.kernels.is_empty() { &all } else { &args.kernels };
    if let Some(unknown) = kernels.iter().find(|name| !SERIES.contains(&name.as_str())) {
        return Err(FetchError::UnknownKernel(unknown.clone()).into());
    }
    let say = Stderr::new();
    let cache = Cache::from_env()?;
    Qemu::cached(&cache, &say)?;
    let busybox = Busybox::cached(&cache, &say)?;
    for series in kernels {
        let kernel = Kernel::find(&cache, series, &busybox, &say)?;
        say.line(&format!("kernel {series} is {}", kernel.version));
    }
    say.line(&format!("everything is in {}", cache.dir().display()));
    Ok(ExitCode::SUCCESS)
}
