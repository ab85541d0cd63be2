//! How a probe knows that it runs in the lab: the lab leaves a file in the guest.
//!
//! Format of `/run/nearfar-lab`: one JSON object, `{"machine": "cxl-2tier", "clock": "virtual", "slow_motion": 1}`,
//! with `"llc_kib"` if the modelled last-level cache differs from what the guest's sysfs shows. Unknown keys are let
//! pass. A file that is there but can't be understood still means "emulated": nothing emulated is ever called measured.

use std::fs;
use std::io;
use std::path::Path;

use crate::report::Lab;

/// Where the lab leaves the file.
pub const MARKER: &str = "/run/nearfar-lab";

/// The lab's word about this machine; `None` where there is none.
///
/// # Errors
/// What is wrong with the file, in one line.
pub fn read(path: &Path) -> Result<Option<Lab>, String> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|error| format!("{}: {error}", path.display()))?,
    };
    let lab = parse(&text).map_err(|what| {
        format!("{}: {what}; this is a lab guest whose machine can't be told", path.display())
    })?;
    Ok(Some(lab))
}

fn parse(text: &str) -> Result<Lab, String> {
    let lab: Lab = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if !(lab.slow_motion >= 1.0 && lab.slow_motion <= 1e6) {
        return Err(format!("slow_motion is {}, not 1 to 1000000", lab.slow_motion));
    }
    Ok(lab)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_means_no_lab() {
        assert_eq!(read(Path::new("/nowhere/nearfar-lab")), Ok(None));
    }

    #[test]
    fn the_labs_word_is_taken_with_or_without_the_optional_key() {
        let lab = parse(r#"{"machine":"cxl-2tier","clock":"virtual","slow_motion":1,"new":2}"#);
        assert_eq!(
            lab.map(|lab| (lab.machine, lab.slow_motion, lab.llc_kib)),
            Ok(("cxl-2tier".into(), 1.0, None))
        );
        let lab =
            parse(r#"{"machine":"m","clock":"wait","slow_motion":25.5,"llc_kib":4096}"#).unwrap();
        assert_eq!((lab.clock.as_str(), lab.llc_kib), ("wait", Some(4096)));
    }

    #[test]
    fn a_file_that_is_not_understood_is_an_error_and_not_a_real_machine() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marker");
        for text in ["", "{}", "[1]", r#"{"machine":"m","clock":"wait","slow_motion":0.5}"#] {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err();
            assert!(error.contains("lab guest"), "{text}: {error}");
        }
    }
}
