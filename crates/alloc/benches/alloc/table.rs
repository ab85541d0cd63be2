//! Prints the results as a table, and the targets beside the results.

use nearfar_topology::median;

use crate::libraries::Library;
use crate::loops::Load;

/// The baseline of all ratios: plain jemalloc.
const CORE: Library = Library::Jemalloc;
/// Most time of `NF_DEFAULT`, of that of another kind.
const DEFAULT_MOST: f64 = 1.1;

pub(crate) fn print(
    load: Load,
    threads: usize,
    found: &[(Library, Vec<f64>)],
    absent: &[(Library, String)],
) {
    let core = found
        .iter()
        .find(|(library, _)| *library == CORE)
        .and_then(|(_, all)| median(all.iter().copied()));
    println!("{}, {threads} thread(s): ns for an object allocated and freed", load.name());
    for (library, figures) in found {
        let Some(figure) = median(figures.iter().copied()) else {
            let why = absent.iter().find(|(other, _)| other == library);
            println!("  {:<28} absent: {}", library.name(), why.map_or("", |(_, why)| why));
            continue;
        };
        let (least, most) = figures
            .iter()
            .fold((f64::MAX, 0.0_f64), |(least, most), one| (least.min(*one), most.max(*one)));
        let ratio = core.map_or(f64::NAN, |core| figure / core);
        println!("  {:<28} {figure:8.1}  ({least:.1} to {most:.1})  {ratio:6.2} x", library.name());
    }
    wanted(load, threads, found);
}

/// Prints nearfar's targets beside its results: the least ratio of each peer's time, and of jemalloc's, to nearfar's.
fn wanted(load: Load, threads: usize, found: &[(Library, Vec<f64>)]) {
    let of = |wanted: Library| {
        found
            .iter()
            .find(|(library, _)| *library == wanted)
            .and_then(|(_, figures)| median(figures.iter().copied()))
    };
    let Some(own) = of(Library::Nearfar) else { return };
    let pool = match threads {
        1 => 11.0,
        2 => 15.0,
        _ => 1.0,
    };
    let peers =
        [(CORE, 1.0 / 1.1), (Library::Pool, pool), (Library::Memkind, 1.0), (Library::Umf, 1.0)];
    // For other loads the only target is to match jemalloc.
    let peers = if matches!(load, Load::Pairs | Load::Mixed) { &peers[..] } else { &peers[..1] };
    for (peer, least) in peers.iter().copied() {
        let Some(figure) = of(peer) else { continue };
        let ratio = figure / own;
        let verdict = if ratio >= least { "reached" } else { "not reached" };
        println!(
            "    {:<26} takes {ratio:5.2} x nearfar's time; wanted {least:.2} x: {verdict}",
            peer.name()
        );
    }
    let Some(figure) = of(Library::NearfarDefault) else { return };
    let ratio = figure / own;
    let verdict = if ratio <= DEFAULT_MOST { "reached" } else { "not reached" };
    println!(
        "    {:<26} takes {ratio:5.2} x nearfar's time; wanted at most {DEFAULT_MOST:.2} x: {verdict}",
        Library::NearfarDefault.name()
    );
}
