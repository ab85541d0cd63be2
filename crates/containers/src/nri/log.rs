//! Lines of the log: `event=... key=value`.

use super::messages as nri;

/// The words that name a container in the log.
pub(super) fn names(pod: &nri::PodSandbox, container: &nri::Container) -> String {
    let pod = format!("{}/{}", pod.namespace, pod.name);
    format!("pod={} container={} id={}", word(&pod), word(&container.name), word(&container.id))
}

/// The reason of an event.
pub(super) fn reason(text: &str) -> String {
    format!("reason={}", word(text))
}

/// A value in the log: quoted as in JSON if it has anything but plain characters.
pub(super) fn word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.into();
    }
    serde_json::Value::from(text).to_string()
}
