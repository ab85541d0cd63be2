//! Entry for fuzz targets: the bytes that a runtime sends.

use prost::Message as _;

use super::{frame, messages, ttrpc};

/// Arbitrary bytes as a runtime's messages, for fuzz targets: no panic, and frames survive a round trip.
pub fn fuzz(data: &[u8]) {
    let mut frames = frame::Reader::default();
    let mut calls = ttrpc::Reader::default();
    if let Ok(found) = frames.add(data) {
        for found in found {
            let mut written = Vec::new();
            frame::write(&mut written, found.connection, &found.payload);
            let again = frame::Reader::default().add(&written).unwrap_or_default();
            let payload: Vec<u8> = again.into_iter().flat_map(|frame| frame.payload).collect();
            assert_eq!(payload, found.payload);
            let Ok(messages) = calls.add(&found.payload) else { break };
            for message in messages {
                let _ = ttrpc::Request::decode(message.payload.as_slice());
                let _ = ttrpc::Response::decode(message.payload.as_slice());
            }
        }
    }
    let _ = messages::CreateContainerRequest::decode(data);
    let _ = messages::SynchronizeRequest::decode(data);
    let _ = messages::StateChangeEvent::decode(data);
    let _ = messages::ConfigureRequest::decode(data);
}
