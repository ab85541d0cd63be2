//! Parquet beside or from a record: the partition values, and the directory, checked before anything is changed.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use nearfar_kernel::fs::Fs;
use nearfar_parquet::{Dataset, Error, Labels, Summary, check, workload};
use nearfar_record::Header;
use nearfar_topology::Bytes;

use nearfar_command::exit::{EndsWith as _, Exit};

/// Arguments as typed.
#[derive(Debug, clap::Args)]
pub(super) struct ParquetArgs {
    /// Also write the record as Parquet, partitioned by host, date and workload, below this directory
    #[arg(long = "parquet", value_name = "DIR")]
    pub(super) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) labels: LabelArgs,
}

/// Values of Parquet's partitions.
#[derive(Debug, clap::Args)]
pub(crate) struct LabelArgs {
    /// Value of the partition `host` of Parquet [default: this host's name]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Value of the partition `workload` of Parquet [default: machine, the cgroup's path, or the command's name]
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
}

impl ParquetArgs {
    /// Checks the values and the directory, which is created.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let given = [("--host", &self.labels.host), ("--workload", &self.labels.workload)];
        let Some(dir) = &self.dir else {
            let lone = given.into_iter().find(|(_, value)| value.is_some());
            let refused =
                |(name, _)| Err(anyhow::anyhow!("{name} is for Parquet; add --parquet DIR"));
            return lone.map_or(Ok(()), refused).ends_with(Exit::Usage);
        };
        let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "default".into());
        Labels::new(&or(&self.labels.host), &or(&self.labels.workload))
            .map(drop)
            .and_then(|()| check(dir))
            .with_context(|| format!("--parquet {}", dir.display()))
            .ends_with(Exit::Usage)
    }

    /// Starts the dataset, if one is requested.
    pub(super) fn open(&self, fs: &dyn Fs, header: &Header) -> anyhow::Result<Option<Dataset>> {
        let open = |dir: &PathBuf| self.labels.open(fs, dir, header);
        self.dir.as_ref().map(open).transpose()
    }
}

impl LabelArgs {
    /// Starts a dataset below `dir` for a record with this header.
    ///
    /// # Errors
    /// The values or the directory are unusable, or the record has no start time.
    pub(crate) fn open(&self, fs: &dyn Fs, dir: &Path, header: &Header) -> anyhow::Result<Dataset> {
        let asked = || format!("Parquet below {}", dir.display());
        let labels = self.labels(fs, header).with_context(asked)?;
        let made = labels.and_then(|labels| Dataset::create(dir, &labels, header));
        made.with_context(asked).ends_with(Exit::Usage)
    }

    fn labels(&self, fs: &dyn Fs, header: &Header) -> anyhow::Result<Result<Labels, Error>> {
        let host = match &self.host {
            Some(host) => host.clone(),
            None => fs.read("proc/sys/kernel/hostname")?.unwrap_or_default().trim().to_owned(),
        };
        let workload = self.workload.clone().unwrap_or_else(|| workload(&header.target));
        Ok(Labels::new(&host, &workload))
    }
}

/// The result, for the user.
pub(crate) fn summary_text(dir: &Path, summary: Summary) -> String {
    let Summary { parts, kept, rows, bytes } = summary;
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let mut text = format!(
        "{rows} row{} in {parts} part{} below {} ({})",
        plural(rows),
        plural(parts),
        dir.display(),
        Bytes(bytes)
    );
    if kept > 0 {
        text += &format!("; {kept} part{} existed with the same contents", plural(kept));
    }
    text
}
