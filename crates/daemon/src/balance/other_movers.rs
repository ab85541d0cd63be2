//! Other programs that migrate the same pages. Two of them would undo each other's work, so only one may run.
//!
//! | program | reaction |
//! |---|---|
//! | another `nearfar balance`, or `nearfar tier` | refused: a claim beside the journal ([`crate::owner`]) |
//! | the kernel's NUMA balancing | switched off through the journal, unless a sensor uses it or it is to be kept |
//! | a kdamond that migrates pages, of any owner | refused, with its name |
//! | the kubelet's memory manager | pods, which have nodes assigned by it, are excluded; to balance one of them is refused |

use nearfar_kernel::damon::holder::{Holder, holders};
use nearfar_kernel::fs::Fs;

/// State file of the kubelet's memory manager.
const KUBELET: &str = "var/lib/kubelet/memory_manager_state";
/// Actions that migrate pages.
const MOVES: [&str; 3] = ["migrate_hot", "migrate_cold", "pageout"];
/// Cgroup of the kubelet's pods.
pub(super) const PODS: &str = "kubepods";

/// Returns an error that names a kdamond that migrates pages, if there is one.
pub(super) fn refuse_kdamonds(fs: &dyn Fs) -> anyhow::Result<()> {
    for holder in holders(fs)? {
        let Holder::Kdamond { actions, thread: Some(_), .. } = &holder else { continue };
        if actions.iter().any(|action| MOVES.contains(&action.as_str())) {
            anyhow::bail!("{holder} migrates pages already; {}", holder.way_out());
        }
    }
    Ok(())
}

/// The policy of the kubelet's memory manager, if it assigns nodes to pods; `None` otherwise.
pub(super) fn kubelet(fs: &dyn Fs) -> Option<String> {
    let text = fs.read(KUBELET).ok().flatten()?;
    let state: serde_json::Value = serde_json::from_str(&text).ok()?;
    let policy = state["policyName"].as_str()?;
    (policy != "None").then(|| policy.to_owned())
}

/// Whether the path of a cgroup belongs to one of the kubelet's pods.
pub(super) fn is_pod(path: &str) -> bool {
    path.split('/').any(|part| part == PODS || part.starts_with("kubepods."))
}

/// Refuses a cgroup to which the kubelet assigns nodes.
pub(super) fn refuse_pod(fs: &dyn Fs, cgroup: Option<&str>) -> anyhow::Result<()> {
    if let (Some(policy), Some(path)) = (kubelet(fs), cgroup.filter(|path| is_pod(path))) {
        anyhow::bail!(
            "--cgroup {path}: the kubelet's memory manager (policy {policy}) has chosen nodes for its pods; set \
             memoryManagerPolicy: None to balance them"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearfar_kernel::fs::TreeFs;
    use nearfar_topology::Tree;

    fn system(entries: &[(&str, &str)]) -> TreeFs {
        let mut tree = Tree::new();
        entries.iter().for_each(|(path, text)| tree.insert(path, text));
        TreeFs(tree)
    }

    #[test]
    fn pods_are_rejected_if_the_kubelet_places_their_memory() {
        let chooses = |policy: &str| {
            system(&[(KUBELET, &format!("{{\"policyName\":\"{policy}\",\"checksum\":1}}"))])
        };
        let pod = Some("/kubepods.slice/kubepods-burstable.slice/x");
        let error = refuse_pod(&chooses("Static"), pod).unwrap_err().to_string();
        assert!(error.contains("Static") && error.contains("kubepods-burstable"), "{error}");
        for (fs, path) in [
            (chooses("None"), pod),
            (chooses("Static"), Some("/system.slice")),
            (chooses("Static"), None),
            (system(&[(KUBELET, "not json")]), pod),
            (system(&[]), pod),
        ] {
            refuse_pod(&fs, path).unwrap();
        }
        assert!(is_pod("/kubepods/besteffort/x") && !is_pod("/app/kubepodsx"));
    }

    #[test]
    fn a_kdamond_that_migrates_pages_is_rejected_and_a_monitoring_one_allowed() {
        let kdamond = |action: &str| {
            let scheme = "sys/kernel/mm/damon/admin/kdamonds/0/contexts/0/schemes";
            system(&[
                ("sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1"),
                ("sys/kernel/mm/damon/admin/kdamonds/0/state", "on"),
                ("sys/kernel/mm/damon/admin/kdamonds/0/pid", "77"),
                ("sys/kernel/mm/damon/admin/kdamonds/0/contexts/nr_contexts", "1"),
                (&format!("{scheme}/nr_schemes"), "1"),
                (&format!("{scheme}/0/action"), action),
                ("proc/77/comm", "kdamond.0"),
            ])
        };
        let error = refuse_kdamonds(&kdamond("migrate_cold")).unwrap_err().to_string();
        assert!(error.contains("kdamond 0") && error.contains("migrate_cold"), "{error}");
        refuse_kdamonds(&kdamond("stat")).unwrap();
    }
}
