//! Fuzz targets for input of the command.

use crate::workload::file;

/// Workload files of benchmarks: arbitrary bytes.
pub fn workloads(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = file::parse("fuzzed", text);
    }
}
