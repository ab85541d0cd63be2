//! A configuration of cachebench (CacheLib's benchmark) as a workload.
//!
//! ```text
//! test_config.numKeys                                   keys
//!            .popDistFile | popularityBuckets, popularityWeights    objects and requests, most popular first
//!            .valSizeDistFile | valSizeRange, valSizeRangeProbability  bytes of values
//!            .keySizeRange, keySizeRangeProbability     bytes of keys
//!            .ttlSecsRange, ttlSecsRangeProbability     seconds, if there are any
//!            .getRatio .setRatio .delRatio .loneGetRatio .loneSetRatio .updateRatio
//!            .enableLookaside                           a read that finds nothing stores the key
//! ```
//!
//! Settings of the cache, of threads and of pace are ignored: the command line has them here. Settings that would
//! change the requests and are not supported (several pools, chained items, popularity by a normal distribution) are
//! refused. Comments are allowed, as in cachebench. The caller reads the files that a configuration names.

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use super::{Buckets, Parts, Popularity, Ratios, Sizes, Unusable, VALUE_MAX};

#[derive(Deserialize)]
struct File {
    test_config: Test,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Test {
    num_keys: u64,
    enable_lookaside: bool,
    get_ratio: f64,
    set_ratio: f64,
    del_ratio: f64,
    lone_get_ratio: f64,
    lone_set_ratio: f64,
    update_ratio: f64,
    add_chained_ratio: f64,
    could_exist_ratio: f64,
    key_size_range: Vec<f64>,
    key_size_range_probability: Vec<f64>,
    ttl_secs_range: Vec<f64>,
    ttl_secs_range_probability: Vec<f64>,
    pop_dist_file: Option<String>,
    val_size_dist_file: Option<String>,
    pool_distributions: Vec<IgnoredAny>,
    #[serde(flatten)]
    popularity: Table,
    #[serde(flatten)]
    sizes: SizeTable,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Table {
    popularity_buckets: Vec<f64>,
    popularity_weights: Vec<f64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SizeTable {
    val_size_range: Vec<f64>,
    val_size_range_probability: Vec<f64>,
}

/// The workload that a configuration describes. `read` returns the text of a file that it names; `keys` overrides its
/// number of keys.
///
/// # Errors
/// The configuration is not supported, or describes no workload.
pub fn parse(
    config: &str,
    keys: Option<u64>,
    read: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<Parts, Unusable> {
    let File { test_config: mut test } = understood("the configuration", config)?;
    refuse(&test)?;
    if let Some(file) = &test.pop_dist_file {
        test.popularity = understood(file, &read(file).map_err(Unusable::Config)?)?;
    }
    if let Some(file) = &test.val_size_dist_file {
        test.sizes = understood(file, &read(file).map_err(Unusable::Config)?)?;
    }
    let keys = keys.unwrap_or(test.num_keys);
    let Table { popularity_buckets, popularity_weights } = &test.popularity;
    if popularity_buckets.is_empty() {
        return Err(unknown(
            "popDistFile or popularityBuckets is missing; popularity is drawn by a table alone",
        ));
    }
    let SizeTable { val_size_range, val_size_range_probability } = &test.sizes;
    let ttl = if test.ttl_secs_range.is_empty() {
        None
    } else {
        let (range, weights) = (&test.ttl_secs_range, &test.ttl_secs_range_probability);
        Some(Sizes::weighted("ttlSecsRange", range, weights, u32::MAX)?)
    };
    Ok(Parts {
        keys,
        popularity: Popularity::Buckets(Buckets::new(
            popularity_buckets,
            popularity_weights,
            keys,
        )?),
        key_bytes: Sizes::weighted(
            "keySizeRange",
            &test.key_size_range,
            &test.key_size_range_probability,
            KEYS,
        )?,
        value_bytes: Sizes::weighted(
            "valSizeRange",
            val_size_range,
            val_size_range_probability,
            VALUES,
        )?,
        ttl,
        ratios: test.ratios(),
        fill: test.enable_lookaside,
    })
}

/// An upper bound only against absurd values; sizes of keys are clamped later.
const KEYS: u32 = 1 << 16;
/// [`VALUE_MAX`], in the type of sizes.
#[expect(clippy::cast_possible_truncation, reason = "128 MiB")]
const VALUES: u32 = VALUE_MAX as u32;

impl Test {
    const fn ratios(&self) -> Ratios {
        Ratios {
            get: self.get_ratio,
            set: self.set_ratio,
            delete: self.del_ratio,
            lone_get: self.lone_get_ratio,
            lone_set: self.lone_set_ratio,
            update: self.update_ratio,
        }
    }
}

fn unknown(why: &str) -> Unusable {
    Unusable::Config(why.into())
}

/// Refuses unsupported settings that would change the requests.
fn refuse(test: &Test) -> Result<(), Unusable> {
    if test.add_chained_ratio > 0.0 || test.could_exist_ratio > 0.0 {
        return Err(unknown(
            "addChainedRatio and couldExistRatio are operations of CacheLib alone; set them to 0",
        ));
    }
    if !test.pool_distributions.is_empty() {
        return Err(unknown(
            "poolDistributions: several pools are not understood; give one's distributions in test_config",
        ));
    }
    Ok(())
}

fn understood<T: DeserializeOwned>(what: &str, text: &str) -> Result<T, Unusable> {
    serde_json::from_str(&without_comments(text))
        .map_err(|error| Unusable::Config(format!("{what}: {error}")))
}

/// Replaces each character of a comment by a space, so that positions in errors stay correct.
fn without_comments(text: &str) -> String {
    #[derive(Clone, Copy, PartialEq)]
    enum In {
        Text,
        String,
        Line,
        Block,
    }
    let mut place = In::Text;
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let pair = chars.peek().map(|next| (c, *next));
        let (next, two) = match (place, pair) {
            (In::Text, Some(('/', '/'))) => (In::Line, true),
            (In::Text, Some(('/', '*'))) => (In::Block, true),
            (In::Text, _) if c == '"' => (In::String, false),
            (In::String, Some(('\\', _))) => (In::String, true),
            (In::String, _) if c == '"' => (In::Text, false),
            (In::Line, _) if c == '\n' => (In::Text, false),
            (In::Block, Some(('*', '/'))) => (In::Text, true),
            _ => (place, false),
        };
        let shown = |c: char, hidden: bool| if hidden && c != '\n' { ' ' } else { c };
        let hidden = [place, next].iter().any(|at| matches!(at, In::Line | In::Block));
        out.push(shown(c, hidden));
        if two {
            out.extend(chars.next().map(|c| shown(c, hidden)));
        }
        place = next;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONFIG: &str = r#"// hand-made; "numKeys": 5
    { "cache_config": { "cacheSizeMB": 1 }, "test_config": {
        "numKeys": 111, /* as many as the
        table */ "enableLookaside": true, "numThreads": 48, "popDistFile": "pop//x.json",
        "keySizeRange": [1, 8, 64], "keySizeRangeProbability": [0.3, 0.7], "valSizeDistFile": "sizes.json",
        "getRatio": 0.9, "loneGetRatio": 0.1, "setRatio": 0.0, "delRatio": 0.0, "addChainedRatio": 0.0 } }"#;

    fn files(name: &str) -> Result<String, String> {
        match name {
            "pop//x.json" => Ok(r#"{"oneHits": 0.1, "popularityBuckets": [1, 10, 100],
                "popularityWeights": [50, 25, 25]}"#
                .into()),
            "sizes.json" => {
                Ok(r#"{"valSizeRange": [31, 4000], "valSizeRangeProbability": [3, 1]}"#.into())
            }
            other => Err(format!("{other}: no such file")),
        }
    }

    fn parsed(config: &str) -> Result<Parts, Unusable> {
        parse(config, None, &mut files)
    }

    #[test]
    fn a_configuration_with_its_files_gives_a_workload() {
        let parts = parsed(CONFIG).unwrap();
        assert_eq!((parts.keys, parts.fill, parts.ttl.is_none()), (111, true, true));
        assert_eq!(parts.ratios, Ratios { get: 0.9, lone_get: 0.1, ..Ratios::default() });
        let mean = parts.value_bytes.mean();
        assert!((980.0..1060.0).contains(&mean), "{mean}");
        assert!((1..64).contains(&parts.key_bytes.of(12345)));
        assert!(matches!(parts.popularity, Popularity::Buckets(_)));
        assert_eq!(parse(CONFIG, Some(7), &mut files).unwrap().keys, 7);
    }

    #[test]
    fn distributions_and_times_to_live_may_be_in_the_configuration() {
        let config = r#"{ "test_config": { "numKeys": 3, "getRatio": 1, "popularityBuckets": [3], "popularityWeights": [1],
            "keySizeRange": [16], "keySizeRangeProbability": [1], "valSizeRange": [5, 9], "valSizeRangeProbability": [1],
            "ttlSecsRange": [60], "ttlSecsRangeProbability": [1] } }"#;
        let parts = parsed(config).unwrap();
        assert_eq!((parts.ttl.unwrap().of(1), parts.fill), (60, false));
        assert!((5..9).contains(&parts.value_bytes.of(99)));
    }

    #[test]
    fn unsupported_configurations_are_refused_with_the_reason() {
        let with =
            |from: &str, to: &str| parsed(&CONFIG.replace(from, to)).unwrap_err().to_string();
        assert!(with("\"numKeys\": 111", "\"numKeys\": 0").contains("0 keys"));
        assert!(with("pop//x", "none").contains("none.json: no such file"));
        assert!(
            with("\"addChainedRatio\": 0.0", "\"addChainedRatio\": 0.2").contains("CacheLib alone")
        );
        assert!(
            with("\"numThreads\": 48", "\"poolDistributions\": [{}, {}]").contains("several pools")
        );
        assert!(with("\"popDistFile\": \"pop//x.json\"", "\"x\": 1").contains("popDistFile or"));
        assert!(with("[1, 8, 64]", "[1]").contains("keySizeRange: 1 values and 2 weights"));
        assert!(with("\"getRatio\": 0.9", "\"getRatio\": \"x\"").contains("line 6"));
        assert!(parsed("[]").is_err() && parsed("").is_err());
    }

    proptest! {
        #[test]
        fn any_text_gives_a_workload_or_an_error(text in "\\PC*", quoted in "[\"\\\\/*a\n]*") {
            let _ = parsed(&text);
            let kept = without_comments(&quoted);
            prop_assert_eq!(kept.chars().count(), quoted.chars().count());
            prop_assert_eq!(kept.matches('\n').count(), quoted.matches('\n').count());
        }
    }
}
