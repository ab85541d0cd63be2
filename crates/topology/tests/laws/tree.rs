//! The tree: a map of paths whose directories follow from the paths.

use std::collections::{BTreeMap, BTreeSet};

use nearfar_topology::Tree;
use proptest::prelude::*;

use crate::sysfs::RECORDED;

fn paths() -> impl Strategy<Value = Vec<(String, String)>> {
    proptest::collection::vec(("[a-c](/[a-c-]{1,2}){0,3}", "[ -~\n]{0,12}"), 0..12)
}

fn tree(entries: &[(String, String)]) -> Tree {
    let mut tree = Tree::new();
    entries.iter().for_each(|(path, text)| tree.insert(path, text));
    tree
}

proptest! {
    #[test]
    fn the_last_text_for_a_path_is_kept(entries in paths()) {
        let last: BTreeMap<&str, &str> = entries.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        let tree = tree(&entries);
        prop_assert_eq!(tree.len(), last.len());
        prop_assert_eq!(tree.is_empty(), last.is_empty());
        for (path, text) in last {
            prop_assert_eq!(tree.text(path), Some(text.trim()));
        }
    }

    #[test]
    fn the_order_of_inserting_does_not_matter(entries in paths().prop_shuffle()) {
        let unique: BTreeMap<String, String> = entries.into_iter().collect();
        let forward: Vec<_> = unique.into_iter().collect();
        let backward: Vec<_> = forward.iter().rev().cloned().collect();
        prop_assert_eq!(tree(&forward), tree(&backward));
    }

    #[test]
    fn children_are_the_next_segments_of_the_paths_below(entries in paths(), at in "[a-c](/[a-c]){0,2}") {
        let tree = tree(&entries);
        let below = format!("{at}/");
        let next = |(path, _): &(String, String)| {
            path.strip_prefix(&below).and_then(|rest| rest.split('/').next()).map(ToString::to_string)
        };
        let expected: BTreeSet<String> = entries.iter().filter_map(next).collect();
        let found: Vec<String> = tree.children(&at).map(ToString::to_string).collect();
        prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn a_path_exists_if_it_is_a_file_or_has_children(entries in paths(), at in "[a-c](/[a-c]){0,2}") {
        let tree = tree(&entries);
        let expected = tree.text(&at).is_some() || tree.children(&at).next().is_some();
        prop_assert_eq!(tree.exists(&at), expected);
    }

    #[test]
    fn every_ancestor_of_an_entry_exists(entries in paths()) {
        let tree = tree(&entries);
        for (path, _) in &entries {
            let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
            prop_assert!(ends.map(|end| &path[..end]).all(|path| tree.exists(path)), "{path}");
        }
    }

    #[test]
    fn a_leading_slash_makes_no_difference(entries in paths()) {
        let slashed: Vec<_> = entries.iter().map(|(path, text)| (format!("/{path}"), text.clone())).collect();
        let (plain, slashed) = (tree(&entries), tree(&slashed));
        for (path, _) in &entries {
            prop_assert_eq!(plain.text(&format!("/{path}")), slashed.text(path));
        }
        prop_assert_eq!(plain, slashed);
    }

    #[test]
    fn numbers_read_back_in_both_notations(number in any::<u64>()) {
        let texts = [format!("{number}\n"), format!("0x{number:x}"), format!("  0x{number:016X}  ")];
        for text in texts {
            let mut tree = Tree::new();
            tree.insert("n", &text);
            prop_assert_eq!(tree.number("n"), Some(number), "{}", text);
        }
    }

    #[test]
    fn numbers_above_64_bits_are_refused(high in 1u64.., low in any::<u64>()) {
        let wide = (u128::from(high) << 64) | u128::from(low);
        for text in [wide.to_string(), format!("{wide:#x}")] {
            let mut tree = Tree::new();
            tree.insert("n", &text);
            prop_assert_eq!(tree.number("n"), None, "{}", text);
        }
    }

    #[test]
    fn text_before_the_first_entry_is_ignored(head in "(#[ -?a-z]{0,20}\n){0,4}", entries in paths()) {
        let tree = tree(&entries);
        prop_assert_eq!(Tree::parse(&format!("{head}{}", tree.record())), tree);
    }

    #[test]
    fn in_joined_recordings_later_entries_override_earlier_ones(a in paths(), b in paths()) {
        let joined = Tree::parse(&format!("{}{}", tree(&a).record(), tree(&b).record()));
        prop_assert_eq!(joined, tree(&[a, b].concat()));
    }
}

#[test]
fn recorded_machines_survive_recording_and_nothing_in_them_is_lost() {
    for (name, text) in RECORDED {
        let tree = Tree::parse(text);
        assert_eq!(Tree::parse(&tree.record()), tree, "{name}");
        let entries = text.lines().filter(|line| line.starts_with("@ ")).count();
        assert_eq!(tree.len(), entries, "{name}");
    }
}

#[test]
fn a_link_has_a_target_and_a_file_has_none() {
    let mut tree = Tree::new();
    tree.insert("link", "-> ../../devices/pci0000:00");
    tree.insert("file", "->");
    assert_eq!(tree.link("link"), Some("../../devices/pci0000:00"));
    assert_eq!(tree.link("file"), None);
    assert_eq!(tree.link("none"), None);
}
