//! Parsers of external input, for fuzz targets: each accepts any bytes, and writing the parsed value and parsing it
//! again gives the same value.

use crate::advice::options::Options as Daemon;
use crate::balance::state::State as Balance;
use crate::budget::state::State as Budgets;
use crate::tier::change::Change;
use crate::tier::options::Options as Tier;
use crate::tier::state::State as Tiering;

/// State files and requests: display must work for any numbers.
pub fn states(data: &[u8]) {
    if let Ok(state) = serde_json::from_slice::<Tiering>(data) {
        let _ = (state.text(), state.order());
        again(&state);
    }
    if let Ok(state) = serde_json::from_slice::<Balance>(data) {
        let _ = state.text();
        again(&state);
    }
    if let Ok(state) = serde_json::from_slice::<Budgets>(data) {
        let _ = state.text();
        again(&state);
    }
    if let Ok(change) = serde_json::from_slice::<Change>(data) {
        again(&change);
    }
}

fn again<T>(state: &T)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let text = serde_json::to_string(state).unwrap_or_default();
    let read = serde_json::from_str::<T>(&text);
    assert!(read.is_ok_and(|read| read == *state), "{text}");
}

/// Files of options, of workloads and of bandwidths.
pub fn options(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(options) = Tier::parse(text) {
        let read = Tier::parse(&options.text());
        assert!(read.is_ok_and(|read| read == options), "{}", options.text());
    }
    let _ = Daemon::parse(text);
    let _ = nearfar_command::weighing::file::parse(text);
}
