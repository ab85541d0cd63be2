//! The placements that are compared.

use nearfar_topology::Mix;

use super::line::Line;
use crate::report::model::Placement;

/// Id, name, options of `nearfar run`; without options the program runs as it is. The first is what ratios refer to.
const PLACEMENTS: [(&str, &str, &str); 5] = [
    ("near", "near only", "-m near"),
    ("far", "far only", "-m far"),
    ("default", "kernel default", ""),
    ("interleave", "1:1 interleave", "-i all"),
    ("auto", "-w auto", "-w auto"),
];

/// All of them, none unavailable yet.
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

/// What stands before a program to run it on one node alone.
pub(crate) fn on_node(node: u16) -> Line {
    prefix(&format!("-m {node}"))
}

/// The program under a placement. `mix` is what is known of the program's reads and writes; weights depend on it.
pub(crate) fn under(placement: &Placement, mix: Option<Mix>, program: &Line) -> Line {
    match mix.filter(|_| placement.id == "auto") {
        Some(mix) => prefix(&format!("-w auto --mix {mix}")).and(program),
        None => Line::words(&placement.prefix).and(program),
    }
}

/// What stands before a program that is placed by these options of `nearfar run`.
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
