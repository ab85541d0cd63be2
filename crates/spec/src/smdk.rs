//! `CXLMALLOC_CONF`: the settings of SMDK's preload library, `key:value,key:value`, of both its generations.
//!
//! Their meaning here: near memory is that of nodes with CPUs (`normal`), far memory that of nodes without (`exmem`).
//! Each type has a budget; freed memory counts as free again (in SMDK it never did). When the first type's budget is
//! used up, the second type serves requests; when that is used up, too, `maxmemory_policy` decides: `oom` is ENOMEM (in
//! SMDK the process ended; `full=abort` in `NEARFAR_CONF` does that), `interleave` raises both budgets by their
//! original size, `remain` stays with the second type.
//!
//! As in SMDK, errors are reported on stderr and the other settings apply; unknown keys are ignored.

use nearfar_policy::interleave::Rule;

/// The settings. Sizes in bytes; `None` is no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smdk {
    /// Whether far memory is used at all.
    pub use_exmem: bool,
    /// Budget of near memory.
    pub normal_size: Option<u64>,
    /// Budget of far memory.
    pub exmem_size: Option<u64>,
    /// Whether far memory serves requests first.
    pub exmem_first: bool,
    /// What happens when both budgets are used up.
    pub when_both_are_full: BothFull,
    /// The far nodes to use; `None` is all.
    pub exmem_nodes: Option<String>,
    /// The rule of adaptive interleaving.
    pub adaptive: Option<Rule>,
    /// Nodes of `weighted_interleaving`; `None` is all.
    pub interleave_nodes: Option<String>,
}

/// `maxmemory_policy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BothFull {
    /// ENOMEM.
    #[default]
    Oom,
    /// Both budgets are raised.
    Interleave,
    /// The second type serves further requests.
    Remain,
}

const TIB: u64 = 1 << 40;
/// The largest size in MiB.
const MIB_MOST: u64 = 1 << 20;

impl Default for Smdk {
    fn default() -> Self {
        Self {
            use_exmem: true,
            normal_size: Some(TIB),
            exmem_size: Some(TIB),
            exmem_first: false,
            when_both_are_full: BothFull::Oom,
            exmem_nodes: None,
            adaptive: None,
            interleave_nodes: None,
        }
    }
}

/// Parses the settings; returns them with the errors. Without a daemon to follow, adaptive interleaving is disabled, as
/// upstream's is.
pub fn parse(text: &str, has_daemon: impl Fn() -> bool) -> (Smdk, Vec<String>) {
    let mut read = Reading::default();
    let pairs = pairs(text, &mut read.wrong);
    for (key, value) in pairs {
        read.set(&key, &value);
    }
    read.adaptive = read.adaptive && has_daemon();
    read.finish()
}

/// Splits the text into keys and values. A digit after a comma continues a list of nodes.
fn pairs(text: &str, wrong: &mut Vec<String>) -> Vec<(String, String)> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    if text.is_empty() {
        return pairs;
    }
    for part in text.split(',') {
        let continues = part.starts_with(|letter: char| letter.is_ascii_digit());
        if let Some((_, value)) = pairs.last_mut().filter(|(key, _)| continues && is_list(key)) {
            value.push(',');
            value.push_str(part);
            continue;
        }
        let is_key = |key: &str| {
            !key.is_empty()
                && key.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        match part.split_once(':') {
            Some((key, value)) if is_key(key) => pairs.push((key.to_string(), value.to_string())),
            // Upstream's own samples end in `,:`.
            Some(("", "")) => {}
            None if part.is_empty() => {
                wrong.push("Conf string ends with comma".to_string());
                break;
            }
            None if is_key(part) => {
                wrong.push(format!("Conf string ends with key: {part}"));
                break;
            }
            _ => {
                wrong.push(format!("Malformed conf string: {part}"));
                break;
            }
        }
    }
    pairs
}

fn is_list(key: &str) -> bool {
    matches!(key, "exmem_partition_range" | "interleave_node")
}

#[derive(Debug, Default)]
struct Reading {
    smdk: Smdk,
    adaptive: bool,
    policy: Option<Rule>,
    wrong: Vec<String>,
}

impl Reading {
    fn set(&mut self, key: &str, value: &str) {
        let smdk = &mut self.smdk;
        let known = match key {
            "use_exmem" => flag(value).map(|value| smdk.use_exmem = value),
            "normal_size" | "normal_zone_size" => size(value).map(|value| smdk.normal_size = value),
            "exmem_size" | "exmem_zone_size" => size(value).map(|value| smdk.exmem_size = value),
            "priority" => {
                smdk.exmem_first = value == "exmem";
                matches!(value, "normal" | "exmem").then_some(())
            }
            "maxmemory_policy" => {
                let policies = [
                    ("oom", BothFull::Oom),
                    ("interleave", BothFull::Interleave),
                    ("remain", BothFull::Remain),
                ];
                one_of(value, &policies, &mut smdk.when_both_are_full)
            }
            "exmem_partition_range" => {
                smdk.exmem_nodes = Some(value.to_string()).filter(|value| value != "all");
                Some(())
            }
            "interleave_node" => {
                smdk.interleave_nodes = Some(value.to_string());
                Some(())
            }
            "use_adaptive_interleaving" => flag(value).map(|value| self.adaptive = value),
            "adaptive_interleaving_policy" => {
                let policies = [
                    ("bw_saturation", Some(Rule::Saturation)),
                    ("bw_order", Some(Rule::Order)),
                    ("weighted_interleaving", Some(Rule::Weighted)),
                ];
                one_of(value, &policies, &mut self.policy)
            }
            // The number of arenas can't be set here.
            "use_auto_arena_scaling" => flag(value).map(|_| ()),
            "nr_normal_arena" | "nr_exmem_arena" => {
                value.parse().ok().filter(|count| (1..=128_u32).contains(count)).map(|_| ())
            }
            _ => Some(()),
        };
        if known.is_none() {
            self.wrong.push(format!("Invalid conf value: {key}:{value}"));
        }
    }

    fn finish(mut self) -> (Smdk, Vec<String>) {
        if self.adaptive {
            self.smdk.adaptive = self.policy.or(Some(Rule::Saturation));
            self.smdk.exmem_first = false;
            (self.smdk.normal_size, self.smdk.exmem_size) = (None, None);
        }
        (self.smdk, self.wrong)
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Sets one of the allowed values; a bad value leaves the default in force.
fn one_of<T: Copy + Default>(text: &str, all: &[(&str, T)], into: &mut T) -> Option<()> {
    let found = all.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    *into = found.unwrap_or_default();
    found.map(|_| ())
}

/// MiB, or with `g` or `m`; -1 is no limit.
#[expect(clippy::option_option, reason = "no size, no limit, and a limit are three things")]
fn size(text: &str) -> Option<Option<u64>> {
    if text == "-1" {
        return Some(None);
    }
    let (number, mib) = match text.strip_suffix(['g', 'G']) {
        Some(number) => (number, 1024),
        None => (text.strip_suffix(['m', 'M']).unwrap_or(text), 1),
    };
    let mib = number.parse::<u64>().ok()?.checked_mul(mib)?;
    (1..=MIB_MOST).contains(&mib).then_some(Some(mib << 20))
}

/// A size as a budget: none from 1 TiB on.
#[must_use]
pub fn budget(size: Option<u64>) -> Option<u64> {
    size.filter(|size| *size < TIB)
}

impl Smdk {
    /// The lines that SMDK's scripts look for, with the effective `priority`.
    #[must_use]
    pub fn lines(&self) -> String {
        let size = |size: Option<u64>| {
            budget(size)
                .map_or_else(|| "unlimited".to_string(), |size| format!("{} MB", size >> 20))
        };
        let policy = match self.when_both_are_full {
            _ if self.adaptive.is_some() => "ignored",
            BothFull::Oom => "oom",
            BothFull::Interleave => "interleave",
            BothFull::Remain => "remain",
        };
        let order = if self.exmem_first { "exmem->normal" } else { "normal->exmem" };
        let adaptive = match self.adaptive {
            None => "use_adaptive_interleaving is disabled".to_string(),
            Some(Rule::Saturation) => "adaptive_interleaving_policy = bw_saturation".to_string(),
            Some(Rule::Order) => "adaptive_interleaving_policy = bw_order".to_string(),
            Some(Rule::Weighted) => {
                "adaptive_interleaving_policy = weighted_interleaving".to_string()
            }
        };
        format!(
            "normal_size = {}\nexmem_size = {}\nmaxmemory_policy = {policy}\nprio = [{order}]\n{adaptive}\n",
            size(self.normal_size),
            size(self.exmem_size),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> (Smdk, Vec<String>) {
        super::parse(text, || true)
    }

    #[test]
    fn an_empty_configuration_is_the_default() {
        assert_eq!(parse(""), (Smdk::default(), Vec::new()));
        let lines = Smdk::default().lines();
        for line in ["normal_size = unlimited", "prio = [normal->exmem]", "is disabled"] {
            assert!(lines.contains(line), "{lines}");
        }
    }

    #[test]
    fn keys_of_both_generations_are_read() {
        for text in [
            "exmem_size:131072,normal_size:2048,maxmemory_policy:remain,priority:exmem",
            "exmem_zone_size:128g,normal_zone_size:2048m,maxmemory_policy:remain,priority:exmem,nr_normal_arena:4",
        ] {
            let (smdk, wrong) = parse(text);
            assert_eq!(wrong, Vec::<String>::new());
            assert_eq!((smdk.normal_size, smdk.exmem_size), (Some(2 << 30), Some(128 << 30)));
            assert_eq!(smdk.when_both_are_full, BothFull::Remain);
            assert!(smdk.exmem_first);
        }
    }

    #[test]
    fn node_lists_may_contain_commas() {
        let (smdk, wrong) = parse("exmem_partition_range:1,2-3,use_exmem:true,interleave_node:0,1");
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!(smdk.exmem_nodes.as_deref(), Some("1,2-3"));
        assert_eq!(smdk.interleave_nodes.as_deref(), Some("0,1"));
        assert_eq!(parse("exmem_partition_range:all").0.exmem_nodes, None);
    }

    #[test]
    fn adaptive_interleaving_overrules_order_and_sizes() {
        let (smdk, wrong) = parse(
            "use_adaptive_interleaving:true,priority:exmem,normal_size:5,adaptive_interleaving_policy:bw_order",
        );
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!((smdk.adaptive, smdk.exmem_first), (Some(Rule::Order), false));
        assert_eq!(smdk.normal_size, None);
        assert!(smdk.lines().contains("maxmemory_policy = ignored"));
    }

    #[test]
    fn without_a_daemon_adaptive_interleaving_is_disabled_and_the_rest_applies() {
        let text = "use_adaptive_interleaving:true,priority:exmem,normal_size:5";
        let (smdk, wrong) = super::parse(text, || false);
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!((smdk.adaptive, smdk.exmem_first), (None, true));
        assert_eq!(smdk.normal_size, Some(5 << 20));
        assert!(smdk.lines().contains("use_adaptive_interleaving is disabled"));
    }

    #[test]
    fn invalid_settings_are_reported_and_the_rest_applies() {
        for (text, said) in [
            ("normal_size:5,priority", "Conf string ends with key: priority"),
            ("normal_size:5,", "Conf string ends with comma"),
            ("normal_size:5,=x:y", "Malformed conf string: =x:y"),
            ("normal_size:5,exmem_size:0", "Invalid conf value: exmem_size:0"),
            ("normal_size:5,exmem_size:1048577", "Invalid conf value: exmem_size:1048577"),
            ("normal_size:5,priority:both", "Invalid conf value: priority:both"),
            ("normal_size:5,use_exmem:yes", "Invalid conf value: use_exmem:yes"),
        ] {
            let (smdk, wrong) = parse(text);
            assert_eq!(wrong, [said], "{text}");
            assert_eq!(smdk, Smdk { normal_size: Some(5 << 20), ..Smdk::default() }, "{text}");
        }
        assert_eq!(parse("no_such_key:1").1, Vec::<String>::new());
    }

    #[test]
    fn an_empty_key_with_an_empty_value_is_skipped() {
        let (smdk, wrong) = parse("normal_size:5,:,exmem_size:6,:");
        assert_eq!(wrong, Vec::<String>::new());
        assert_eq!((smdk.normal_size, smdk.exmem_size), (Some(5 << 20), Some(6 << 20)));
        assert_eq!(parse("normal_size:5,:x").1, ["Malformed conf string: :x"]);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&String::from_utf8_lossy(&bytes)).0.lines();
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,60}") {
            let _ = parse(&text);
        }

        #[test]
        fn nothing_near_the_syntax_panics(
            text in "((exmem_size|normal_size|priority|interleave_node|maxmemory_policy)?:?[-0-9a-zA-Z]{0,8},?){0,6}"
        ) {
            let _ = parse(&text).0.lines();
        }
    }
}
