//! A machine's memory as a drawing: boxes of nodes, as text and as SVG.
//!
//! A node with CPUs is a box with its own memory and, inside, boxes of the memory that is attached to it: nodes without
//! CPUs whose best initiator it is by firmware, or else to which it is the closest. Memory that belongs to no CPUs is
//! beside them. Below the boxes are the distances between the nodes with CPUs. Sizes of boxes mean nothing.

use std::fmt::Write as _;

use nearfar_topology::{Bytes, CpuList, MemoryKind, NodeId, Topology};

/// A box.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Block {
    title: String,
    lines: Vec<String>,
    /// The colour of its border in SVG.
    colour: &'static str,
    inside: Vec<Block>,
}

/// Width of a box in text, at least.
const WIDTH: usize = 38;

/// Pixels of a line, of a character (a generous one), and of the margin.
const LINE: usize = 18;
const CHAR: usize = 8;
const MARGIN: usize = 10;

/// The drawing in lines of at most `columns` characters, if no box needs more.
#[must_use]
pub fn text(machine: &Topology, columns: usize) -> String {
    let (blocks, links) = (blocks(machine), links(machine));
    let width = blocks.iter().map(Block::width).max().unwrap_or(0).clamp(WIDTH, columns.max(WIDTH));
    let per_row = (columns + 2) / (width + 2);
    let mut out = String::new();
    for row in blocks.chunks(per_row.max(1)) {
        let drawn: Vec<Vec<String>> = row.iter().map(|block| block.draw(width)).collect();
        let height = drawn.iter().map(Vec::len).max().unwrap_or(0);
        for at in 0..height {
            let blank = " ".repeat(width);
            let line: Vec<&str> = drawn
                .iter()
                .map(|lines| lines.get(at).map_or(blank.as_str(), String::as_str))
                .collect();
            let _ = writeln!(out, "{}", line.join("  ").trim_end());
        }
    }
    links.iter().for_each(|link| out.push_str(&format!("{link}\n")));
    out
}

/// The drawing for a browser or a document.
#[must_use]
pub fn svg(machine: &Topology) -> String {
    let (blocks, links) = (blocks(machine), links(machine));
    let width = blocks.iter().map(Block::width).max().unwrap_or(0).max(WIDTH / 2) * CHAR;
    let per_row = blocks.len().clamp(1, 4);
    let mut body = String::new();
    let mut y = MARGIN;
    for row in blocks.chunks(per_row) {
        for (column, block) in row.iter().enumerate() {
            rectangle(&mut body, block, (MARGIN + column * (width + 2 * MARGIN), y), width);
        }
        let height = row.iter().map(Block::height).max().unwrap_or(0);
        y += height * LINE + 2 * MARGIN;
    }
    for link in links {
        y += LINE;
        label(&mut body, (MARGIN, y), &link, "#333333");
    }
    let wide = per_row * (width + 2 * MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{}\" font-family=\"sans-serif\" font-size=\"13\" \
         role=\"img\" aria-label=\"Memory of the machine\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n",
        y + MARGIN
    )
}

fn blocks(machine: &Topology) -> Vec<Block> {
    let cpu_nodes = machine.cpu_nodes();
    let alone: Vec<(NodeId, Option<NodeId>)> = machine
        .nodes
        .iter()
        .filter(|(_, node)| node.cpus.is_empty() && node.size > Bytes(0))
        .map(|(id, _)| (*id, machine.attached_to(*id, &cpu_nodes).iter().next()))
        .collect();
    let of_home = |home: Option<NodeId>| -> Vec<Block> {
        let own = alone.iter().filter(|(_, of)| *of == home);
        own.map(|(id, _)| block(machine, *id, Vec::new())).collect()
    };
    let mut blocks: Vec<Block> =
        cpu_nodes.iter().map(|id| block(machine, id, of_home(Some(id)))).collect();
    blocks.extend(of_home(None));
    blocks
}

fn block(machine: &Topology, id: NodeId, inside: Vec<Block>) -> Block {
    let node = machine.nodes.get(&id).cloned().unwrap_or_default();
    let mut lines = Vec::new();
    match node.cpus.len() {
        0 => {}
        1 => lines.push(format!("CPU {}", node.cpus[0])),
        count => lines.push(format!("{count} CPUs: {}", CpuList(&node.cpus))),
    }
    if node.size > Bytes(0) {
        let tier = machine.tier_of(id).map(|rank| format!(", tier {rank}")).unwrap_or_default();
        lines.push(format!("{} {}{tier}", node.kind, node.size));
    }
    for cache in node.caches.iter().filter_map(|cache| cache.size) {
        lines.push(format!("behind a cache of {cache}"));
    }
    for region in machine.cxl_regions.iter().filter(|region| region.target_node == Some(id)) {
        let devices = match region.devices.is_empty() {
            true => String::new(),
            false => format!(": {}", region.devices.join(", ")),
        };
        lines.push(format!("CXL {}{devices}", region.name));
    }
    let colour = match node.kind {
        MemoryKind::Dram => "#2f6f9f",
        MemoryKind::Hbm => "#1b8a5a",
        MemoryKind::Cxl => "#c2731c",
        MemoryKind::Pmem => "#8a5fb0",
        MemoryKind::Gpu => "#5c8a1b",
        MemoryKind::Unknown => "#666666",
    };
    Block { title: format!("node {id}"), lines, colour, inside }
}

/// Distances between nodes with CPUs, one line each.
fn links(machine: &Topology) -> Vec<String> {
    let nodes: Vec<NodeId> = machine.cpu_nodes().iter().collect();
    let pairs = nodes
        .iter()
        .enumerate()
        .flat_map(|(at, from)| nodes[at + 1..].iter().map(move |to| (*from, *to)));
    pairs
        .filter_map(|(from, to)| {
            let distance = machine.distance(from, to)?;
            Some(format!("node {from} to node {to}: distance {distance}"))
        })
        .collect()
}

impl Block {
    /// Characters that its content needs.
    fn width(&self) -> usize {
        let own = self.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let inside = self.inside.iter().map(Self::width).max().unwrap_or(0);
        (self.title.chars().count() + 4).max(own + 4).max(inside + 4)
    }

    fn draw(&self, width: usize) -> Vec<String> {
        let fill = |text: &str, room: usize| {
            format!("{text}{}", " ".repeat(room.saturating_sub(text.chars().count())))
        };
        let bar = "─".repeat(width.saturating_sub(self.title.chars().count() + 4));
        let mut lines = vec![format!("┌ {} {bar}┐", self.title)];
        let room = width.saturating_sub(4);
        let inside = self.inside.iter().flat_map(|block| block.draw(room));
        let content = self.lines.iter().cloned().chain(inside);
        lines.extend(content.map(|line| format!("│ {} │", fill(&line, room))));
        lines.push(format!("└{}┘", "─".repeat(width.saturating_sub(2))));
        lines
    }

    /// Height in SVG, in lines of text.
    fn height(&self) -> usize {
        2 + self.lines.len() + self.inside.iter().map(|block| block.height() + 1).sum::<usize>()
    }
}

fn rectangle(out: &mut String, block: &Block, (x, y): (usize, usize), width: usize) {
    let height = block.height() * LINE;
    let _ = writeln!(
        out,
        "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{}\" fill-opacity=\"0.07\" \
         stroke=\"{}\"/>",
        block.colour, block.colour
    );
    let mut at = y + LINE;
    label(out, (x + MARGIN, at), &block.title, block.colour);
    for line in &block.lines {
        at += LINE;
        label(out, (x + MARGIN, at), line, "#222222");
    }
    at += LINE / 2;
    for inner in &block.inside {
        rectangle(out, inner, (x + MARGIN, at), width - 2 * MARGIN);
        at += (inner.height() + 1) * LINE;
    }
}

fn label(out: &mut String, (x, y): (usize, usize), text: &str, colour: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" fill=\"{colour}\">{text}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::testkit::{machine, node};

    #[test]
    fn attached_memory_is_inside_the_box_of_its_cpus() {
        let mut machine = machine([
            node(0).cpus(0..4),
            node(1).cpus(4..8),
            node(2).kind(MemoryKind::Cxl),
            node(3).kind(MemoryKind::Gpu),
        ]);
        for (from, to, distance) in [(0, 2, 24), (1, 2, 14), (0, 3, 40), (1, 3, 80)] {
            machine.distances.entry(NodeId(from)).or_default().insert(NodeId(to), distance);
        }
        let drawn = text(&machine, 80);
        let expected = "\
┌ node 0 ────────────────────────────┐  ┌ node 1 ────────────────────────────┐
│ 4 CPUs: 0-3                        │  │ 4 CPUs: 4-7                        │
│ dram 4 GiB, tier 0                 │  │ dram 4 GiB, tier 0                 │
│ ┌ node 3 ────────────────────────┐ │  │ ┌ node 2 ────────────────────────┐ │
│ │ gpu 4 GiB                      │ │  │ │ cxl 4 GiB, tier 1              │ │
│ └────────────────────────────────┘ │  │ └────────────────────────────────┘ │
└────────────────────────────────────┘  └────────────────────────────────────┘
node 0 to node 1: distance 20
";
        assert_eq!(drawn, expected, "{drawn}");
        let svg = svg(&machine);
        assert_eq!(svg.matches("<rect x=").count(), 4, "{svg}");
        assert!(svg.contains(">node 3</text>") && svg.ends_with("</svg>\n"), "{svg}");
    }

    #[test]
    fn a_machine_without_nodes_has_an_empty_picture() {
        assert_eq!(text(&Topology::default(), 80), "");
        assert!(svg(&Topology::default()).contains("</svg>"));
    }
}
