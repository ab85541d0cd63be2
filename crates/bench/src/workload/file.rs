//! Workload files: those of `lab/workloads`, which are part of this program, and the user's. Format: `lab/workloads/README.md`.

use anyhow::{Context as _, bail};
use serde::Deserialize;

use crate::demo::line::Line;

/// The built-in ones.
const FILES: [(&str, &str); 10] = [
    ("redis-a", include_str!("../../../../lab/workloads/redis-a.toml")),
    ("redis-b", include_str!("../../../../lab/workloads/redis-b.toml")),
    ("redis-c", include_str!("../../../../lab/workloads/redis-c.toml")),
    ("redis-moving", include_str!("../../../../lab/workloads/redis-moving.toml")),
    ("memcached-large", include_str!("../../../../lab/workloads/memcached-large.toml")),
    ("gups-steady", include_str!("../../../../lab/workloads/gups-steady.toml")),
    ("gups-moving", include_str!("../../../../lab/workloads/gups-moving.toml")),
    ("graph", include_str!("../../../../lab/workloads/graph.toml")),
    ("scan", include_str!("../../../../lab/workloads/scan.toml")),
    ("fits", include_str!("../../../../lab/workloads/fits.toml")),
];

/// Vertices and edges of a graph of degree 16, in bytes a vertex (`lab/programs/graph.c`).
const VERTEX_BYTES: u64 = 16 + 16 * 8;

/// A workload file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Workload {
    /// Its name.
    pub(crate) name: String,
    /// Its description.
    pub(crate) description: String,
    /// Source of the idea or the settings; for readers of the file.
    #[serde(rename = "source")]
    _source: String,
    /// The lab's machine it is meant for.
    pub(crate) machine: String,
    set_percent: u64,
    record_bytes: Option<u64>,
    #[serde(default)]
    pub(crate) filler_percent: u64,
    server: Option<String>,
    load: Option<String>,
    run: String,
    #[serde(default)]
    stops_when_ready: bool,
    #[serde(default = "yes")]
    pub(crate) tiering_helps: bool,
    compared_at_percent: Option<u64>,
    seconds: u64,
}

fn yes() -> bool {
    true
}

/// Parameters for sizing a workload.
#[derive(Clone, Debug)]
pub(crate) struct Fit {
    /// Near memory, in bytes.
    pub(crate) near_bytes: u64,
    /// Working set; the file's if `None`.
    pub(crate) set_mib: Option<u64>,
    /// Run time; the file's if `None`.
    pub(crate) seconds: Option<u64>,
    /// Percentage of the time in which programs work, 1 to 100.
    pub(crate) busy_percent: u64,
    /// The directory with the compiled programs.
    pub(crate) programs: String,
    /// The load generator.
    pub(crate) load: String,
    /// A free port.
    pub(crate) port: u16,
}

/// A sized workload: sizes and command lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fitted {
    /// The working set.
    pub(crate) set_bytes: u64,
    /// Length of the timed part.
    pub(crate) seconds: u64,
    /// The process with the data, if separate.
    pub(crate) server: Option<Line>,
    /// The command that fills it.
    pub(crate) load: Option<Line>,
    /// The timed program.
    pub(crate) run: Line,
    /// Whether that program stops itself once its memory is allocated, and is timed from SIGCONT on.
    pub(crate) stops_when_ready: bool,
}

/// Names and descriptions of the built-in ones.
pub(crate) fn list() -> anyhow::Result<Vec<Workload>> {
    FILES.iter().map(|(name, text)| parse(name, text)).collect()
}

/// A built-in one by name, or a file.
pub(crate) fn find(name: &str) -> anyhow::Result<Workload> {
    if let Some((name, text)) = FILES.iter().find(|(built_in, _)| *built_in == name) {
        return parse(name, text);
    }
    if !is_path(name) {
        let names = FILES.map(|(name, _)| name).join(", ");
        bail!(
            "workload {name}: neither a built-in workload nor a file; built in are {names}, and a path to a file \
             contains a / or ends in .toml"
        );
    }
    let text = nearfar_kernel::fs::read_input(name.as_ref(), 1 << 20)
        .with_context(|| format!("reading workload file {name}"))?;
    parse(name, &text)
}

/// Whether a name is a path; a file with a built-in name in the current directory needs `./`.
pub(crate) fn is_path(name: &str) -> bool {
    name.contains('/') || name.ends_with(".toml")
}

/// Parses a workload file.
pub(crate) fn parse(name: &str, text: &str) -> anyhow::Result<Workload> {
    let workload: Workload =
        toml::from_str(text).with_context(|| format!("workload file {name}"))?;
    let refuse = |what: &str| bail!("workload file {name}: {what}");
    if !(1..=100_000).contains(&workload.set_percent) {
        refuse("set_percent: allowed are 1 to 100000, per cent of near memory")?;
    }
    if workload.filler_percent > 95 {
        refuse("filler_percent: allowed are 0 to 95, per cent of free near memory")?;
    }
    if workload.record_bytes == Some(0) || workload.seconds == 0 {
        refuse("record_bytes and seconds must be above 0")?;
    }
    if workload.load.is_some() && workload.server.is_none() {
        refuse("load without server: there is nothing to fill")?;
    }
    if workload.compared_at_percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
        refuse("compared_at_percent: allowed are 1 to 100")?;
    }
    if workload.stops_when_ready && workload.server.is_some() {
        refuse("stops_when_ready with server: the server is waited for until it listens")?;
    }
    // Errors in the commands are found here too, for any size.
    let fit = Fit {
        near_bytes: 1 << 30,
        set_mib: None,
        seconds: None,
        busy_percent: 100,
        programs: "/".into(),
        load: "l".into(),
        port: 1,
    };
    workload.fit(&fit).with_context(|| format!("workload file {name}"))?;
    Ok(workload)
}

impl Workload {
    /// Percentage of busy time in comparisons of tiering systems, to keep emulation short.
    pub(crate) fn compared_at_percent(&self) -> u64 {
        self.compared_at_percent.unwrap_or(100)
    }

    /// Whether its hot set moves in the middle of the run.
    pub(crate) fn moves(&self) -> bool {
        self.run.contains("{half_s}")
    }

    /// Whether it runs the load generator.
    pub(crate) fn needs_load_generator(&self) -> bool {
        let commands = [self.server.as_ref(), self.load.as_ref(), Some(&self.run)];
        commands.into_iter().flatten().any(|command| command.contains("{load}"))
    }

    /// Its sizes and commands on a machine.
    pub(crate) fn fit(&self, fit: &Fit) -> anyhow::Result<Fitted> {
        let of_near = u128::from(fit.near_bytes) * u128::from(self.set_percent) / 100;
        let of_near = u64::try_from(of_near).unwrap_or(u64::MAX);
        let set_bytes = fit.set_mib.map_or(of_near, |mib| mib << 20);
        if set_bytes < 1 << 20 {
            bail!("a working set of {set_bytes} bytes: it takes at least 1 MiB");
        }
        let seconds = fit.seconds.unwrap_or(self.seconds);
        let scale = (set_bytes / VERTEX_BYTES).max(16).ilog2();
        let mib = |bytes: u64| Some((bytes >> 20).max(1).to_string());
        let value = |name: &str| match name {
            "programs" => Some(fit.programs.clone()),
            "load" => Some(fit.load.clone()),
            "port" => Some(fit.port.to_string()),
            "set_mib" => mib(set_bytes),
            "hot_mib" => mib((fit.near_bytes / 4).min(set_bytes)),
            "half_mib" => mib((fit.near_bytes / 2).min(set_bytes)),
            "records" => self.record_bytes.map(|bytes| (set_bytes / bytes).max(1).to_string()),
            "scale" => Some(scale.to_string()),
            "seconds" => Some(seconds.to_string()),
            "busy_percent" => Some(fit.busy_percent.to_string()),
            // Whole seconds, rounded up, so that there is no second half-way point within the run.
            "half_s" => Some(seconds.div_ceil(2).to_string()),
            _ => None,
        };
        let line = |text: &String| filled(text, &value);
        Ok(Fitted {
            set_bytes,
            seconds,
            server: self.server.as_ref().map(line).transpose()?,
            load: self.load.as_ref().map(line).transpose()?,
            run: line(&self.run)?,
            stops_when_ready: self.stops_when_ready,
        })
    }
}

/// A command's words with every `{name}` replaced. Words are split first: replacements may contain spaces.
fn filled(text: &str, value: &dyn Fn(&str) -> Option<String>) -> anyhow::Result<Line> {
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        let mut rest = if word == "''" { "" } else { word };
        let mut out = String::new();
        while let Some((before, after)) = rest.split_once('{') {
            let Some((name, behind)) = after.split_once('}') else {
                bail!("`{word}`: a {{ without its }}");
            };
            let Some(value) = value(name) else {
                bail!(
                    "`{word}`: {{{name}}} stands for nothing here; there are programs, load, port, set_mib, hot_mib, \
                     half_mib, scale, seconds, half_s, busy_percent, and records where record_bytes is given"
                );
            };
            out += before;
            out += &value;
            rest = behind;
        }
        words.push(out + rest);
    }
    if words.is_empty() {
        bail!("an empty command");
    }
    Ok(Line::new(words))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NEAR: u64 = 256 << 20;

    fn fit(near_bytes: u64) -> Fit {
        Fit {
            near_bytes,
            set_mib: None,
            seconds: None,
            busy_percent: 100,
            programs: "/p q".into(),
            load: "/b/nearfar-load".into(),
            port: 7,
        }
    }

    #[test]
    fn every_built_in_workload_is_valid_and_has_its_file_name() {
        let machines = nearfar_lab::machine::catalog::FILES.map(|(name, _)| name);
        for (workload, (name, _)) in list().unwrap().iter().zip(FILES) {
            assert_eq!(workload.name, name);
            assert!(machines.contains(&workload.machine.as_str()), "{workload:?}");
            let fitted = workload.fit(&fit(NEAR)).unwrap();
            assert!(!fitted.run.to_string().contains('{'), "{}", fitted.run);
        }
    }

    #[test]
    fn sizes_scale_with_near_memory_unless_given() {
        let redis = find("redis-b").unwrap();
        let fitted = redis.fit(&fit(NEAR)).unwrap();
        assert_eq!(fitted.set_bytes, 512 << 20);
        let records = format!("--records {} ", (512 << 20) / redis.record_bytes.unwrap());
        assert!(fitted.run.to_string().contains(&records), "{}", fitted.run);
        assert!(fitted.server.unwrap().to_string().contains("--save '' --appendonly no"));
        let said = Fit { set_mib: Some(100), seconds: Some(3), ..fit(NEAR) };
        let fitted = find("gups-moving").unwrap().fit(&said).unwrap();
        let run = fitted.run.to_string();
        assert!(run.contains("mb=100 hot_mb=64 ") && run.contains("seconds=3 "), "{run}");
        assert!(run.contains("move_ms=2000 "), "the hot set moves in mid-run: {run}");
        assert!(run.starts_with("'/p q/gups'"), "a path with a space stays one word: {run}");
    }

    #[test]
    fn the_graph_is_the_largest_that_is_within_the_set() {
        let run = find("graph").unwrap().fit(&fit(NEAR)).unwrap().run.to_string();
        assert!(run.contains("scale=21 "), "{run}");
        const { assert!((VERTEX_BYTES << 21) <= 2 * NEAR && (VERTEX_BYTES << 22) > 2 * NEAR) };
    }

    #[test]
    fn workload_file_errors_are_reported_by_name() {
        let good = FILES[6].1;
        for (from, to, with) in [
            ("set_percent = 200", "set_percent = 0", "set_percent"),
            ("seconds = 20", "seconds = 0", "seconds"),
            ("seconds = 20", "seconds = 20\nsecond = 1", "unknown field"),
            ("seconds = 20", "seconds = 20\ncompared_at_percent = 0", "compared_at_percent"),
            ("seconds = 20", "seconds = 20\nfiller_percent = 96", "filler_percent"),
            ("seconds = 20", "seconds = 20\nload = \"x\"", "nothing to fill"),
            (
                "stops_when_ready = true",
                "stops_when_ready = true\nserver = \"x\"",
                "stops_when_ready",
            ),
            ("{set_mib}", "{records}", "record_bytes"),
            ("{set_mib}", "{size}", "{size} stands for nothing"),
            ("{set_mib}", "{set_mib", "without its }"),
        ] {
            let text = good.replace(from, to);
            assert_ne!(text, good);
            let refused = format!("{:#}", parse("mine.toml", &text).unwrap_err());
            assert!(refused.contains(with) && refused.contains("mine.toml"), "{refused}");
        }
    }

    #[test]
    fn only_those_that_run_the_load_generator_need_it() {
        assert!(find("memcached-large").unwrap().needs_load_generator());
        assert!(!find("scan").unwrap().needs_load_generator());
    }

    #[test]
    fn a_workload_file_must_be_named_by_a_path() {
        assert!(is_path("./scan") && is_path("scan.toml") && !is_path("scan"));
    }

    #[test]
    fn an_unknown_workload_is_reported_with_the_known_ones() {
        assert!(find("redis").unwrap_err().to_string().contains("redis-a, redis-b"));
        assert!(format!("{:#}", find("./none.toml").unwrap_err()).contains("./none.toml"));
    }

    proptest! {
        #[test]
        fn any_text_is_taken_or_refused_without_panic(text in ".{0,200}", word in "[{}a-z' ]{0,20}") {
            let _ = parse("any", &text);
            let _ = parse("any", &FILES[6].1.replace("{set_mib}", &word));
        }

        #[test]
        fn any_machine_is_fitted_or_refused_without_panic(near in 0u64.., set in proptest::option::of(0u64..1 << 40)) {
            for workload in list().unwrap() {
                let _ = workload.fit(&Fit { set_mib: set, ..fit(near) });
            }
        }
    }
}
