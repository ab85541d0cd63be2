//! How what is to move is spread over several nodes of a side: who gives, and who takes.
//!
//! Pages go the shortest way: to the nearest nodes of the other side that have room, and to those equally near in proportion
//! to their room; only what is left goes further. So a socket demotes to its own far memory first, and as that fills, to
//! its neighbours'. What finds no room anywhere stays where it is.

use nearfar_policy::tiering::Side;

use super::node::scale;
use super::way::Way;

/// How much each near node is to give when so much is to leave near memory: those give that have less than their part of
/// what will be free.
pub(super) fn demoted(sides: &[Side], demote: u64) -> Vec<u64> {
    let total: u64 = sides.iter().map(|side| side.total.0).sum();
    let free: u64 = sides.iter().map(|side| side.free.0).sum::<u64>().saturating_add(demote);
    let lacks = |side: &Side| scale(free, side.total.0, total).saturating_sub(side.free.0);
    let taken = |side: &Side| side.total.0.saturating_sub(side.free.0);
    share(demote, &sides.iter().map(|side| lacks(side).min(taken(side))).collect::<Vec<_>>())
}

/// `bytes` in proportion to `weights`; nothing where all are zero.
pub(super) fn share(bytes: u64, weights: &[u64]) -> Vec<u64> {
    let all: u64 = weights.iter().fold(0, |sum, weight| sum.saturating_add(*weight));
    weights.iter().map(|weight| if all == 0 { 0 } else { scale(bytes, *weight, all) }).collect()
}

/// How much of `bytes` goes each of these ways, nearest first; `rooms` is what each destination takes, and less of it then.
pub(super) fn ways(mut bytes: u64, ways: &[Way], rooms: &mut [u64]) -> Vec<u64> {
    let mut gets = vec![0; ways.len()];
    let mut at = 0;
    while at < ways.len() {
        let equal = ways[at..].iter().take_while(|way| way.distance == ways[at].distance).count();
        let near = at..at + equal;
        let room: u64 = rooms[near.clone()].iter().fold(0, |sum, room| sum.saturating_add(*room));
        let parts = share(bytes.min(room), &rooms[near.clone()]);
        for (index, part) in near.zip(parts) {
            gets[index] = part;
            rooms[index] = rooms[index].saturating_sub(part);
            bytes = bytes.saturating_sub(part);
        }
        at += equal;
    }
    gets
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_topology::{Bytes, NodeId};
    use proptest::prelude::*;

    fn side(total: u64, free: u64) -> Side {
        Side { total: Bytes(total), free: Bytes(free) }
    }

    fn to(distances: &[u32]) -> Vec<Way> {
        distances.iter().zip(0..).map(|(far, node)| Way::new(NodeId(node), false, *far)).collect()
    }

    #[test]
    fn a_socket_demotes_to_its_own_far_node_first_and_to_others_as_that_fills() {
        let distances = to(&[20, 30, 30]);
        assert_eq!(ways(50, &distances, &mut [100, 100, 100]), [50, 0, 0]);
        assert_eq!(ways(50, &distances, &mut [20, 100, 200]), [20, 10, 20]);
        assert_eq!(ways(50, &distances, &mut [0, 10, 10]), [0, 10, 10], "the rest stays");
    }

    #[test]
    fn the_fuller_near_node_gives() {
        assert_eq!(demoted(&[side(100, 0), side(100, 20)], 10), [10, 0]);
        assert_eq!(demoted(&[side(100, 0), side(100, 0)], 10), [5, 5]);
        assert_eq!(demoted(&[side(100, 0), side(300, 0)], 40), [10, 30]);
        assert_eq!(
            demoted(&[side(0, 0), side(100, 0)], 40),
            [0, 40],
            "one that is gone gives none"
        );
    }

    proptest! {
        #[test]
        fn no_destination_gets_more_than_its_room_and_no_more_goes_than_was_to(
            bytes in 0u64..1 << 42,
            nodes in prop::collection::vec((10u32..14, 0u64..1 << 40), 0..9),
        ) {
            let mut nodes = nodes;
            nodes.sort_unstable();
            let distances: Vec<u32> = nodes.iter().map(|node| node.0).collect();
            let rooms: Vec<u64> = nodes.iter().map(|node| node.1).collect();
            let gets = ways(bytes, &to(&distances), &mut rooms.clone());
            prop_assert!(gets.iter().zip(&rooms).all(|(part, room)| part <= room));
            let (sum, room) = (gets.iter().sum::<u64>(), rooms.iter().sum::<u64>());
            prop_assert!(sum <= bytes && sum + 9 >= bytes.min(room), "{sum} of {bytes}, {room}");
        }

        #[test]
        fn what_is_demoted_is_given_by_someone_who_has_it(
            sides in prop::collection::vec((0u64..1 << 40, 0u64..100), 1..6), part in 0u64..100,
        ) {
            let sides: Vec<Side> = sides.iter().map(|(all, free)| side(*all, all * free / 100)).collect();
            let taken: u64 = sides.iter().map(|side| side.total.0 - side.free.0).sum();
            let demote = taken * part / 100;
            let gives = demoted(&sides, demote);
            prop_assert!(gives.iter().sum::<u64>() <= demote);
            prop_assert!(gives.iter().sum::<u64>() + 6 >= demote, "{gives:?} of {demote}, {sides:?}");
        }
    }
}
