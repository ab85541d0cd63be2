//! Programs that several tests run, compiled once: tests are processes of their own and run at the same time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Has `make` create a file, unless it is there and newer than `inputs` (files, and those of directories). Other
/// processes wait meanwhile, and the file appears whole.
pub(crate) fn made(file: &Path, inputs: &[PathBuf], make: impl FnOnce(&Path)) {
    let beside = |more: &str| {
        let mut name = file.as_os_str().to_owned();
        name.push(more);
        PathBuf::from(name)
    };
    let lock = File::create(beside(".lock")).unwrap();
    lock.lock().unwrap();
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
    let is_newer = |input: &Path| {
        changed(file).is_ok_and(|made| changed(input).is_ok_and(|changed| made > changed))
    };
    let is_current = inputs.iter().all(|input| match fs::read_dir(input) {
        Ok(files) => files.flatten().all(|file| is_newer(&file.path())),
        Err(_) => is_newer(input),
    });
    if !is_current {
        let new = beside(".new");
        make(&new);
        fs::rename(new, file).unwrap();
    }
}
