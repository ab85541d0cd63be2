//! The compared placements.

use nearfar_topology::Mix;

use super::line::Line;
use nearfar_report::model::Placement;

/// Id, name, options of `nearfar run`; without options the program runs unchanged. The first is the reference of
/// ratios.
const PLACEMENTS: [(&str, &str, &str); 5] = [
    ("near", "near only", "-m near"),
    ("far", "far only", "-m far"),
    ("default", "kernel default", ""),
    ("interleave", "1:1 interleave", "-i all"),
    ("auto", "-w auto", "-w auto"),
];

/// All of them, none marked as unavailable.
pub(crate) fn all() -> Vec<Placement> {
    PLACEMENTS
        .iter()
        .map(|(id, name, options)| Placement {
            id: (*id).into(),
            name: (*name).into(),
            prefix: prefix(options).to_string(),
            unavailable: None,
        })
        .collect()
}

/// The command prefix that runs a program on one node alone.
pub(crate) fn on_node(node: u16) -> Line {
    prefix(&format!("-m {node}"))
}

/// The program under a placement. `mix` is the program's ratio of reads to writes, if known; weights depend on it.
pub(crate) fn under(placement: &Placement, mix: Option<Mix>, program: &Line) -> Line {
    match mix.filter(|_| placement.id == "auto") {
        Some(mix) => prefix(&format!("-w auto --mix {mix}")).and(program),
        None => Line::words(&placement.prefix).and(program),
    }
}

/// The command prefix with these options of `nearfar run`.
pub(crate) fn prefix(options: &str) -> Line {
    if options.is_empty() {
        Line::words("")
    } else {
        Line::words(&format!("nearfar run {options} --"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_placement_is_the_bare_program() {
        let lines: Vec<_> = all()
            .iter()
            .map(|of| under(of, None, &Line::words("redis-server")).to_string())
            .collect();
        assert_eq!(
            lines,
            [
                "nearfar run -m near -- redis-server",
                "nearfar run -m far -- redis-server",
                "redis-server",
                "nearfar run -i all -- redis-server",
                "nearfar run -w auto -- redis-server",
            ]
        );
    }

    #[test]
    fn only_weights_depend_on_the_mix() {
        let lines: Vec<_> = all()
            .iter()
            .map(|of| under(of, Some(Mix::ONE_TO_ONE), &Line::words("x")).to_string())
            .filter(|line| line.contains("--mix"))
            .collect();
        assert_eq!(lines, ["nearfar run -w auto --mix 1:1 -- x"]);
    }
}
