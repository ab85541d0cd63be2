//! A workload in the lab: one boot, in which this binary runs it.

use std::path::Path;

use anyhow::{Context as _, bail};

use nearfar_lab::machine::catalog;

use super::results::Found;
use super::{Request, file, programs};
use crate::demo::guest::{self, Lab};

/// File name of the result in a guest's /out.
pub(crate) const RESULT: &str = "workload.json";
/// File name of the copy of a user's workload file there.
const WORKLOAD: &str = "workload.toml";

/// Runs `name`, a built-in workload or a file, in a guest; `dir` contains the compiled programs and receives their
/// output.
pub(crate) fn run(
    request: &Request,
    name: &str,
    lab: &Lab,
    dir: &Path,
    progress: bool,
) -> anyhow::Result<Found> {
    // Refused here, because the guest would fail only after its boot.
    programs::load_generator(&request.workload)?;
    let lab = Lab { append: isolation(lab.machine.as_deref())?, ..lab.clone() };
    let mut name = name.to_owned();
    if file::is_path(&name) {
        std::fs::copy(&name, dir.join(WORKLOAD))
            .with_context(|| format!("copying workload file {name}"))?;
        name = format!("{}/{WORKLOAD}", guest::OUT);
    }
    let found: Found = lab
        .result(&arguments(request, &name, progress), dir, RESULT)
        .with_context(|| format!("the figures of workload {}", request.workload.name))?;
    if found.runs.len() != request.placements.len() {
        bail!("the lab ran {} of {} placements", found.runs.len(), request.placements.len());
    }
    Ok(found)
}

/// A CPU dedicated to the timed programs, where a near node has another one: unbound kernel threads that migrate pages
/// do not wait for an idle CPU, though on a server there would be one.
fn isolation(machine: Option<&str>) -> anyhow::Result<Option<String>> {
    let Some(machine) = machine.map(catalog::find).transpose()? else { return Ok(None) };
    let nodes = machine.node_of_cpu();
    let others = nodes.iter().filter(|node| nodes.first() == Some(node)).count().saturating_sub(1);
    Ok((others > 0).then(|| format!("isolcpus={others}")))
}

/// The same request as arguments for the binary in the guest.
fn arguments(request: &Request, name: &str, progress: bool) -> Vec<String> {
    let placements: Vec<_> = request.placements.iter().map(|placement| placement.name()).collect();
    let mut arguments: Vec<String> =
        ["workload", name, "--here", "--out", guest::OUT, "--placement"].map(Into::into).into();
    arguments.push(placements.join(","));
    let numbers = [
        ("--near-mib", request.near_mib),
        ("--set-mib", request.set_mib),
        ("--seconds", request.seconds),
        ("--busy-percent", Some(request.busy_percent)),
        ("--filler-percent", request.filler_percent),
        ("--switch-ms", Some(request.switch_ms)),
    ];
    for (option, number) in numbers {
        arguments.extend(number.iter().flat_map(|number| [option.into(), number.to_string()]));
    }
    let texts = [
        ("--first", &request.first),
        ("--before", &request.before),
        ("--after", &request.after),
        ("--daemon", &request.daemon),
    ];
    for (option, text) in texts {
        arguments.extend(text.iter().flat_map(|text| [option.into(), text.clone()]));
    }
    arguments.extend(progress.then(|| "--progress".into()));
    arguments
}

#[cfg(test)]
mod tests {
    use super::super::Placement;
    use super::*;

    #[test]
    fn programs_get_a_cpu_of_their_own_where_there_are_two() {
        assert_eq!(isolation(Some("cxl-2tier-small")).unwrap().as_deref(), Some("isolcpus=1"));
        assert_eq!(isolation(Some("numa-4node")).unwrap(), None);
        assert_eq!(isolation(None).unwrap(), None);
        assert!(isolation(Some("nothing")).is_err());
    }

    #[test]
    fn the_guest_receives_the_same_options() {
        let request = Request {
            workload: file::find("redis-b").unwrap(),
            placements: vec![Placement::Near, Placement::Far],
            near_mib: Some(200),
            set_mib: Some(100),
            seconds: Some(3),
            busy_percent: 20,
            filler_percent: Some(0),
            first: Some("true".into()),
            before: Some("damo start x &".into()),
            after: None,
            switch_ms: 10,
            daemon: Some("tier start".into()),
        };
        assert_eq!(
            arguments(&request, "redis-b", true).join("|"),
            "workload|redis-b|--here|--out|/out|--placement|near,far|--near-mib|200|--set-mib|100|--seconds|3|\
             --busy-percent|20|--filler-percent|0|--switch-ms|10|--first|true|--before|damo start x &|--daemon|tier start|--progress"
        );
    }
}
