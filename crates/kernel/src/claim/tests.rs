//! Claims taken, released, left by killed processes, and written by others.

use super::*;
use proptest::prelude::*;

const HINT: &str = "name another";

fn place() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let about = dir.path().join("new/page");
    (dir, about)
}

/// As after SIGKILL: the lock is released and no file was removed.
fn killed(claim: Claim) {
    let claim = std::mem::ManuallyDrop::new(claim);
    claim.file.unlock().unwrap();
}

#[test]
fn ending_a_claim_removes_only_the_files_it_created() {
    let (dir, about) = place();
    let other = dir.path().join("other");
    fs::write(&other, "theirs").unwrap();
    let mut claim = Claim::take(&about).unwrap();
    claim.create(&about, HINT).unwrap();
    claim.create_dir(&dir.path().join("more")).unwrap();
    claim.create(&dir.path().join("more/one"), HINT).unwrap();
    let error = claim.create(&other, HINT).unwrap_err().to_string();
    assert!(error.contains("other") && error.contains("not nearfar's: name another"), "{error}");
    assert_eq!(fs::metadata(&about).unwrap().mode() & 0o777, 0o644);
    claim.end().unwrap();
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|at| at.unwrap().path()).collect();
    assert_eq!(left, [other]);
}

#[test]
fn a_claim_has_one_holder_and_conflicts_report_it() {
    let (_dir, about) = place();
    let claim = Claim::take(&about).unwrap();
    for error in [Claim::take(&about).unwrap_err(), Claim::clean(&about).unwrap_err()] {
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    }
    drop(claim);
    Claim::take(&about).unwrap();
}

#[test]
fn a_claim_can_be_handed_to_a_child_without_a_gap() {
    let (dir, about) = place();
    let parent = Claim::take_for(&about, Some("tier")).unwrap();
    assert_eq!(Claim::holder(&about).unwrap().of.as_deref(), Some("tier"));
    let file = parent.hand_over().unwrap();
    parent.leave();
    let refused = |error: ClaimError| matches!(error, ClaimError::Held { .. });
    assert!(refused(Claim::take(&about).unwrap_err()), "the open file keeps it");
    let other = File::open(dir.path().join("new")).unwrap();
    assert!(Claim::inherit(other, &about, None).is_err(), "another file is none");
    let child = Claim::inherit(file, &about, Some("tier")).unwrap();
    assert!(refused(Claim::take(&about).unwrap_err()));
    assert_eq!(Claim::holder(&about).unwrap().identity, Identity::own());
    drop(child);
    assert!(Claim::holder(&about).is_none());
    assert!(!dir.path().join("new").exists(), "the directory that the parent made goes, too");
}

#[test]
fn a_process_that_has_ended_is_no_holder_even_if_its_number_is_in_use() {
    let (_dir, about) = place();
    let claim = Claim::take(&about).unwrap();
    let text = text_of(&claim.file).replace("started_ticks\":", "started_ticks\":1");
    claim.file.set_len(0).unwrap();
    (&claim.file).write_all(text.as_bytes()).unwrap();
    assert!(Claim::holder(&about).is_none());
}

#[test]
fn files_of_a_killed_holder_are_removed_unless_replaced_since() {
    let (dir, about) = place();
    let mut claim = Claim::take(&about).unwrap();
    let [one, two] = ["one", "two"].map(|name| dir.path().join("new").join(name));
    claim.create(&one, HINT).unwrap();
    claim.create(&two, HINT).unwrap();
    killed(claim);
    // Created while the old one still exists, so that it has another inode number.
    fs::write(dir.path().join("theirs"), "").unwrap();
    fs::rename(dir.path().join("theirs"), &two).unwrap();
    assert_eq!(Claim::clean(&about).unwrap(), std::slice::from_ref(&one));
    assert!(!one.exists() && two.exists() && !beside(&about).exists());
    assert_eq!(Claim::clean(&about).unwrap(), [] as [PathBuf; 0]);
}

#[test]
fn the_next_holder_removes_and_reports_leftover_files() {
    let (dir, about) = place();
    let mut claim = Claim::take(&about).unwrap();
    let page = claim.create(&about.with_extension("new"), HINT).unwrap();
    drop(page);
    claim.rename(&about.with_extension("new"), &about).unwrap();
    killed(claim);
    let again = Claim::take(&about).unwrap();
    assert_eq!(again.recovered(), std::slice::from_ref(&about));
    again.end().unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nor is the directory left");
}

#[test]
fn claims_writable_by_others_are_not_trusted() {
    let (dir, about) = place();
    fs::create_dir(dir.path().join("new")).unwrap();
    fs::write(beside(&about), "{\"path\":\"/etc/passwd\"}\n").unwrap();
    fs::set_permissions(beside(&about), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(Claim::take(&about), Err(ClaimError::Untrusted { .. })));
    fs::remove_file(beside(&about)).unwrap();
    std::os::unix::fs::symlink("/dev/null", beside(&about)).unwrap();
    assert!(matches!(Claim::take(&about), Err(ClaimError::Call { call: "open", .. })));
    fs::remove_file(beside(&about)).unwrap();
    fs::set_permissions(dir.path().join("new"), fs::Permissions::from_mode(0o777)).unwrap();
    assert!(matches!(Claim::take(&about), Err(ClaimError::Untrusted { .. })));
}

#[test]
fn a_claim_that_others_may_read_becomes_private() {
    let (dir, about) = place();
    fs::create_dir(dir.path().join("new")).unwrap();
    for open in [Claim::take, |about: &Path| Claim::clean(about).and_then(|_| Claim::take(about))] {
        fs::write(beside(&about), "").unwrap();
        fs::set_permissions(beside(&about), fs::Permissions::from_mode(0o644)).unwrap();
        let _claim = open(&about).unwrap();
        assert_eq!(fs::metadata(beside(&about)).unwrap().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_truncated_or_invalid_claim_is_taken_over_without_deleting_files() {
    let (dir, about) = place();
    let kept = dir.path().join("kept");
    fs::write(&kept, "theirs").unwrap();
    let whole = format!("{{\"path\":\"{}\",\"inode\":7}}\n", kept.display());
    let words = [
        whole[..whole.len() - 1].to_owned(),
        whole.replace('7', "18446744073709551616"),
        whole.replace('7', "-1"),
        whole.replace('7', "1e400"),
        whole.replace("kept", "kept\u{0}"),
        "[".repeat(1 << 17) + "\n" + &whole,
        "\u{0}\u{fffd}\n".repeat(1000) + &whole,
    ];
    for words in words {
        fs::create_dir_all(parent(&about)).unwrap();
        fs::write(beside(&about), &words).unwrap();
        let claim = Claim::take(&about).unwrap();
        assert_eq!(claim.recovered(), [] as [PathBuf; 0], "{words:.80}");
        claim.end().unwrap();
        assert_eq!(fs::read(&kept).unwrap(), b"theirs", "{words:.80}");
    }
}

#[test]
fn a_missing_directory_is_reported_by_name() {
    let (dir, about) = place();
    let error = Claim::take(&dir.path().join("no/such/page")).unwrap_err().to_string();
    assert!(
        error.contains(&format!("no directory {}", dir.path().join("no").display())),
        "{error}"
    );
    fs::write(dir.path().join("new"), "a file").unwrap();
    assert!(matches!(Claim::take(&about), Err(ClaimError::Call { .. })));
}

proptest! {
    #[test]
    fn any_words_in_a_claim_are_harmless(text in "([ -~\n]|\\{\"path\":\"[a-z/]{0,9}\"\\}\n){0,40}") {
        let (_dir, about) = place();
        fs::create_dir(parent(&about)).unwrap();
        fs::write(beside(&about), text.replace("\"path\":\"", "\"path\":\"/no/such/")).unwrap();
        Claim::take(&about).unwrap().end().unwrap();
    }
}
