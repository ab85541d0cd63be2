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
}

fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}
