//! The JPEG decoder of a run, on which the pixels of its images depend.

use stratus_data::JpegLibrary;
use stratus_experiment::Decode;
use stratus_run::checkpoint::State;

/// The key of the JPEG decoder among a checkpoint's libraries.
const JPEG: &str = "jpeg";

/// The decoder that a run has used, as its checkpoints record it.
#[derive(Clone, Debug, Default)]
pub(super) struct JpegRecord {
    /// The decoder of this process, once a JPEG file was read.
    current: Option<String>,
    /// The decoder before the run was resumed.
    previous: Option<String>,
}

impl JpegRecord {
    /// The record of a checkpoint's `state`.
    pub fn from_state(state: &State) -> Self {
        Self { current: None, previous: state.libraries.get(JPEG).cloned() }
    }

    /// Sets the decoder of this process, unless it is known; returns its description if it is new.
    pub fn set(&mut self, library: &JpegLibrary, decode: Decode) -> Option<&str> {
        if self.current.is_some() {
            return None;
        }
        Some(self.current.insert(jpeg_decoder(library, decode)))
    }

    /// Adds the decoder to the state of a checkpoint. If no JPEG file was read since the run was resumed, its
    /// results depend on the earlier decoder only.
    pub fn add_to(&self, state: &mut State) {
        let decoder = self.current.as_ref().or(self.previous.as_ref());
        state.libraries.extend(decoder.map(|decoder| (JPEG.to_owned(), decoder.clone())));
    }
}

/// The JPEG decoder, as runs record it.
pub(super) fn jpeg_decoder(library: &JpegLibrary, decode: Decode) -> String {
    match decode {
        Decode::Exact => library.to_string(),
        Decode::Fast => format!("{library}, fast"),
    }
}

/// A warning if the run used another JPEG decoder than `now`.
pub(super) fn decoder_warning(state: &State, now: &str) -> Option<String> {
    let recorded = state.libraries.get(JPEG)?;
    (recorded != now).then(|| {
        format!(
            "resuming with a different JPEG decoder: the run used {recorded}, now {now}; results are \
             equivalent, but not bit-identical to an uninterrupted run"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_when_the_jpeg_decoder_changes() {
        let mut state = State::default();
        let zune = jpeg_decoder(&JpegLibrary::Zune, Decode::Exact);
        assert_eq!(decoder_warning(&state, &zune), None);
        state.libraries.insert(JPEG.to_owned(), JpegLibrary::Zune.to_string());
        assert_eq!(decoder_warning(&state, &zune), None);
        // The same library, but other pixels.
        let fast = jpeg_decoder(&JpegLibrary::Zune, Decode::Fast);
        let text = decoder_warning(&state, &fast).unwrap();
        assert!(text.contains("the run used zune-jpeg 0.5, now zune-jpeg 0.5, fast; "), "{text}");
        state.libraries.insert(JPEG.to_owned(), "libjpeg-turbo 3.0.0".to_owned());
        let text = decoder_warning(&state, &zune).unwrap();
        assert!(text.contains("the run used libjpeg-turbo 3.0.0, now zune-jpeg 0.5; "), "{text}");
    }

    #[test]
    fn checkpoints_keep_the_earlier_decoder_until_a_file_is_read() {
        let earlier = State { libraries: [(JPEG.to_owned(), "a".to_owned())].into(), ..State::default() };
        let mut record = JpegRecord::from_state(&earlier);
        let recorded = |record: &JpegRecord| {
            let mut state = State::default();
            record.add_to(&mut state);
            state.libraries.get(JPEG).cloned()
        };
        assert_eq!(recorded(&record).as_deref(), Some("a"));
        assert_eq!(record.set(&JpegLibrary::Zune, Decode::Exact), Some("zune-jpeg 0.5"));
        assert_eq!(record.set(&JpegLibrary::Zune, Decode::Exact), None);
        assert_eq!(recorded(&record).as_deref(), Some("zune-jpeg 0.5"));
        assert_eq!(recorded(&JpegRecord::default()), None);
    }
}
