//! Messages between a client and `profiler serve`.

#![no_main]

use fuzz::panics;
use libfuzzer_sys::fuzz_target;
use profiler::{
    service::{
        protocol::{Accepted, End, Frame, FrameReader, Kind, Ready, Refused, Request},
        rows::{RowDecoder, RowEncoder},
    },
    sources::dataset_schema,
};

fuzz_target!(init: panics::install_hook(), |data: &[u8]| {
    panics::guarded(|| check(data));
});

/// Messages do not depend on how their bytes arrive, and content that is accepted can be sent again.
fn check(data: &[u8]) {
    let whole = frames(data, data.len());
    assert_eq!(whole, frames(data, 7));
    let mut rows = RowDecoder::new(dataset_schema());
    for frame in &whole {
        match frame.kind {
            Kind::Request => {
                if let Ok(request) = frame.json::<Request>(Kind::Request) {
                    let again = serde_json::to_vec(&request).unwrap();
                    assert_eq!(serde_json::from_slice::<Request>(&again).unwrap(), request);
                }
            }
            Kind::Accepted => drop(frame.json::<Accepted>(Kind::Accepted)),
            Kind::Ready => drop(frame.json::<Ready>(Kind::Ready)),
            Kind::End => drop(frame.json::<End>(Kind::End)),
            Kind::Refused => drop(frame.json::<Refused>(Kind::Refused)),
            Kind::Rows => check_rows(&mut rows, &frame.content),
            Kind::Stop | Kind::Attach | Kind::Reading => {}
        }
    }
}

/// Rows have the columns of their table.
fn check_rows(decoder: &mut RowDecoder, content: &[u8]) {
    for batch in decoder.decode(content).unwrap_or_default() {
        assert_eq!(batch.rows.schema(), batch.table.schema());
        let sent = RowEncoder::default().encode(&batch).unwrap();
        let received = RowDecoder::new(dataset_schema()).decode(&sent).unwrap();
        assert_eq!(received[0].rows, batch.rows);
    }
}

/// The messages before the first malformed one.
fn frames(data: &[u8], piece: usize) -> Vec<Frame> {
    let mut reader = FrameReader::default();
    let mut frames = Vec::new();
    for mut piece in data.chunks(piece.max(1)) {
        reader.read_from(&mut piece).unwrap();
        loop {
            match reader.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return frames,
            }
        }
    }
    frames
}
