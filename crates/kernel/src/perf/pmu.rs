//! Hardware that counts and samples, as sysfs describes it (`/sys/bus/event_source/devices`).
//!
//! A PMU has a number for perf, `format/` with the bits of each term in the configuration (`config:0-7`,
//! `config1:0-15`, `config:0-7,32-35`), `events/` with names for terms (`event=0xcd,umask=0x1,ldlat=3`) beside their
//! `.scale` and `.unit`, and `cpumask` with a CPU for each of several equal units. Only this description is used: no
//! model numbers.

use std::collections::BTreeMap;

use nearfar_topology::CpuId;

use super::Event;
use crate::fs::{Fs, FsError};

const DEVICES: &str = "sys/bus/event_source/devices";

/// Bits of a configuration word, from the lowest on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Field {
    word: usize,
    bits: Vec<(u32, u32)>,
}

/// A PMU.
#[derive(Clone, Debug, PartialEq)]
pub struct Pmu {
    /// Its name in sysfs.
    pub name: String,
    /// Its number.
    pub kind: u32,
    /// CPUs to open it on; empty for any.
    pub cpus: Vec<CpuId>,
    /// Named events, with their terms.
    pub events: BTreeMap<String, String>,
    /// By event: the factor from a count to the event's unit, and the unit.
    pub units: BTreeMap<String, (f64, String)>,
    formats: BTreeMap<String, Field>,
}

/// Terms that a PMU lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PMU {pmu} has no term `{term}` (/{DEVICES}/{pmu}/format)")]
pub struct NoTerm {
    /// The PMU.
    pub pmu: String,
    /// The term.
    pub term: String,
}

impl Pmu {
    /// All PMUs with this prefix of their names, in order.
    ///
    /// # Errors
    /// [`FsError`], if they are there but can't be read.
    pub fn named(fs: &dyn Fs, prefix: &str) -> Result<Vec<Self>, FsError> {
        let listed = fs.list(DEVICES)?.unwrap_or_default();
        let names = listed.into_iter().map(|entry| entry.name);
        let mut found = Vec::new();
        for name in names.filter(|name| name.starts_with(prefix)) {
            found.extend(Self::read(fs, &name)?);
        }
        Ok(found)
    }

    /// The PMU with this name.
    ///
    /// # Errors
    /// [`FsError`], if it is there but can't be read.
    pub fn read(fs: &dyn Fs, name: &str) -> Result<Option<Self>, FsError> {
        let dir = format!("{DEVICES}/{name}");
        let number = fs.read(&format!("{dir}/type"))?;
        let Some(kind) = number.and_then(|text| text.trim().parse().ok()) else { return Ok(None) };
        let cpus = fs.read(&format!("{dir}/cpumask"))?.unwrap_or_default();
        let texts = |below: &str| -> Result<BTreeMap<String, String>, FsError> {
            let mut texts = BTreeMap::new();
            for entry in fs.list(&format!("{dir}/{below}"))?.unwrap_or_default() {
                let text = fs.read(&format!("{dir}/{below}/{}", entry.name))?;
                texts.extend(text.map(|text| (entry.name, text.trim().to_owned())));
            }
            Ok(texts)
        };
        let formats = texts("format")?;
        let formats = formats.iter().filter_map(|(term, text)| Some((term.clone(), field(text)?)));
        let said = texts("events")?;
        let mut units = BTreeMap::new();
        let mut events = BTreeMap::new();
        for (event, terms) in said.iter().filter(|(event, _)| !event.contains('.')) {
            let scale = said.get(&format!("{event}.scale")).and_then(|text| text.parse().ok());
            if let (Some(scale), Some(unit)) = (scale, said.get(&format!("{event}.unit"))) {
                units.insert(event.clone(), (scale, unit.clone()));
            }
            events.insert(event.clone(), terms.clone());
        }
        let (name, formats) = (name.to_owned(), formats.collect());
        Ok(Some(Self { name, kind, cpus: cpu_list(&cpus), events, units, formats }))
    }

    /// Whether it has a term.
    #[must_use]
    pub fn has(&self, term: &str) -> bool {
        self.formats.contains_key(term)
    }

    /// The event with these terms, such as `event=0x3c,umask=1`; a term without a value is 1.
    ///
    /// # Errors
    /// [`NoTerm`].
    pub fn event(&self, terms: &str) -> Result<Event, NoTerm> {
        let mut words = [0_u64; 3];
        for term in terms.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let no_term = || NoTerm { pmu: self.name.clone(), term: term.into() };
            let (name, value) = term.split_once('=').unwrap_or((term, "1"));
            let value = value
                .strip_prefix("0x")
                .map_or_else(|| value.parse().ok(), |digits| u64::from_str_radix(digits, 16).ok());
            let mut value = value.ok_or_else(no_term)?;
            let whole = ["config", "config1", "config2"].iter().position(|whole| *whole == name);
            if let Some(word) = whole {
                words[word] |= value;
                continue;
            }
            let field = self.formats.get(name).ok_or_else(no_term)?;
            for (low, high) in &field.bits {
                let width = high - low + 1;
                let mask = u64::MAX >> (64 - width);
                words[field.word] |= (value & mask) << low;
                value = value.checked_shr(width).unwrap_or(0);
            }
        }
        let [config, config1, config2] = words;
        Ok(Event { kind: self.kind, config, config1, config2, ..Event::default() })
    }
}

/// `config1:0-15`, `config:0-7,32-35`, `config:5`.
fn field(text: &str) -> Option<Field> {
    let (word, bits) = text.split_once(':')?;
    let word = ["config", "config1", "config2"].iter().position(|name| *name == word)?;
    let range = |text: &str| {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let (low, high): (u32, u32) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
        (low <= high && high < 64).then_some((low, high))
    };
    let bits = bits.split(',').map(range).collect::<Option<Vec<_>>>()?;
    Some(Field { word, bits })
}

/// `0-3,8`; invalid numbers are skipped.
fn cpu_list(text: &str) -> Vec<CpuId> {
    const CPUS_MAX: u32 = 1 << 16;
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(low), Ok(high)) = (low.parse::<u32>(), high.parse::<u32>()) {
            cpus.extend((low..=high.min(CPUS_MAX)).map(CpuId));
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::TreeFs;
    use nearfar_topology::Tree;
    use proptest::prelude::*;

    const RECORDED: &str = include_str!("../../../../fixtures/perf/pmus.tree");

    fn pmu(name: &str) -> Pmu {
        Pmu::read(&TreeFs(Tree::parse(RECORDED)), name).unwrap().unwrap()
    }

    #[test]
    fn event_terms_are_encoded_by_the_pmu_format() {
        let cpu = pmu("cpu");
        let loads = cpu.event(&cpu.events["mem-loads"]).unwrap();
        assert_eq!((loads.kind, loads.config, loads.config1), (4, 0x1cd, 3));
        let ibs = pmu("ibs_op");
        let event = ibs.event("cnt_ctl,l3missonly=1").unwrap();
        assert_eq!((event.kind, event.config), (9, 1 << 19 | 1 << 16));
        let umc = pmu("amd_umc_0");
        // A value in two bit ranges.
        assert_eq!(umc.event("event=0x10a,rdwrmask=2").unwrap().config, 0x0a | 2 << 8 | 1 << 32);
        let lacking = ibs.event("ldlat=128").unwrap_err();
        assert_eq!(lacking.term, "ldlat=128");
        assert!(lacking.to_string().contains("ibs_op"), "{lacking}");
        assert!(cpu.event("event=many").is_err());
    }

    #[test]
    fn pmus_are_found_by_name_prefix() {
        let fs = TreeFs(Tree::parse(RECORDED));
        let imcs = Pmu::named(&fs, "uncore_imc_").unwrap();
        let names: Vec<_> = imcs.iter().map(|pmu| pmu.name.as_str()).collect();
        assert_eq!(names, ["uncore_imc_0", "uncore_imc_1"]);
        assert_eq!(imcs[0].cpus, [CpuId(0), CpuId(24)]);
        assert_eq!(imcs[0].units["cas_count_read"], (6.103_515_625e-5, "MiB".into()));
        assert!(Pmu::read(&fs, "none").unwrap().is_none());
    }

    proptest! {
        #[test]
        fn no_text_panics(format in "(config[12]?:)?[0-9,-]{0,12}", terms in "[a-z=,0-9x]{0,20}", cpus in "[0-9,-]{0,8}") {
            let formats = field(&format).map(|field| ("a".to_owned(), field)).into_iter().collect();
            let (name, events, units) = (String::new(), BTreeMap::new(), BTreeMap::new());
            let pmu = Pmu { name, kind: 1, cpus: Vec::new(), events, units, formats };
            let _ = (pmu.event(&terms), pmu.event("a=0xffffffffffffffff"));
            prop_assert!(cpu_list(&cpus).len() <= 8 << 16);
        }
    }
}
