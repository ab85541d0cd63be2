//! Figures as a table.

use crate::libraries::Library;
use crate::loops::Load;

/// The plain core: what ratios are to.
const CORE: Library = Library::Jemalloc;

pub(crate) fn print(
    load: Load,
    threads: usize,
    found: &[(Library, Vec<f64>)],
    absent: &[(Library, String)],
) {
    let core = found.iter().find(|(library, _)| *library == CORE).and_then(|(_, all)| median(all));
    println!("{}, {threads} thread(s): ns for an object allocated and freed", load.name());
    for (library, figures) in found {
        let Some(figure) = median(figures) else {
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
    wanted(threads, found);
}

/// What is wanted of nearfar, each with what it is: peers are to take this many times as long, the core at least as much.
fn wanted(threads: usize, found: &[(Library, Vec<f64>)]) {
    let of = |wanted: Library| {
        found
            .iter()
            .find(|(library, _)| *library == wanted)
            .and_then(|(_, figures)| median(figures))
    };
    let Some(own) = of(Library::Nearfar) else { return };
    let pool = match threads {
        1 => 11.0,
        2 => 15.0,
        _ => 1.0,
    };
    let peers =
        [(CORE, 1.0 / 1.1), (Library::Pool, pool), (Library::Memkind, 1.0), (Library::Umf, 1.0)];
    for (peer, least) in peers {
        let Some(figure) = of(peer) else { continue };
        let ratio = figure / own;
        let verdict = if ratio >= least { "reached" } else { "not reached" };
        println!(
            "    {:<26} takes {ratio:5.2} x nearfar's time; wanted {least:.2} x: {verdict}",
            peer.name()
        );
    }
}

fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
