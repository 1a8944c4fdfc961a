//! The validations whose masks are kept, and what remains of them when a run is resumed.

use crate::TrainError;
use stratus_run::log::Log;
use stratus_run::validation::{MAX_EPOCHS, MaskEpoch, TaskImages, ValidationDir, ValidationImages};

/// The validations whose masks are kept, all of the same images.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MaskHistory {
    /// The names of the images.
    pub samples: Vec<String>,
    /// The validations, the newest last.
    pub epochs: Vec<MaskEpoch>,
}

impl MaskHistory {
    /// Returns whether its masks are those of these images, or there are none.
    pub fn is_of(&self, samples: &[String]) -> bool {
        self.epochs.is_empty() || self.samples == samples
    }

    /// Adds a validation of these images. Those of other images are forgotten. The first and the newest stay
    /// if there are too many, as when validations become rarer in a resumed run.
    pub fn add(&mut self, samples: &[String], epoch: MaskEpoch) {
        if !self.is_of(samples) {
            self.epochs.clear();
        }
        samples.clone_into(&mut self.samples);
        self.epochs.retain(|shown| shown.iou.len() == samples.len() && shown.epoch < epoch.epoch);
        self.epochs.push(epoch);
        while self.epochs.len() as u64 > MAX_EPOCHS {
            self.epochs.remove(1);
        }
    }
}

/// Removes what validations after the `last` epoch wrote. Returns the validations whose masks are kept.
pub(super) fn remove_later(
    folder: &ValidationDir,
    last: u32,
    log: &mut Log,
) -> Result<MaskHistory, TrainError> {
    let index = match ValidationImages::read(folder) {
        Ok(index) => index,
        Err(error) => {
            log.write(&format!("{error}; the next validation replaces it"))?;
            None
        }
    };
    let is_later = index.as_ref().is_some_and(|index| index.epoch > last);
    // The tables are written before the index: they may be newer.
    folder.remove_tables(|epoch| is_later || epoch.is_some_and(|epoch| epoch > last))?;
    match index {
        Some(index) if !is_later && !matches!(index.images, TaskImages::Segmentation { .. }) => {
            Ok(MaskHistory::default())
        }
        Some(ValidationImages {
            size,
            workers,
            images: TaskImages::Segmentation { samples, predictions, colours },
            ..
        }) if !is_later || predictions.first().is_some_and(|shown| shown.epoch <= last) => {
            let mut epochs = predictions;
            epochs.retain(|shown| shown.epoch <= last);
            if is_later {
                let epoch = epochs.last().map_or(last, |shown| shown.epoch);
                let predictions = epochs.clone();
                let images = TaskImages::Segmentation { samples: samples.clone(), predictions, colours };
                let index = ValidationImages { epoch, size, workers, images };
                index.write(folder)?;
                folder.remove_pictures_except(&index)?;
            }
            Ok(MaskHistory { samples, epochs })
        }
        _ => {
            folder.remove_index()?;
            Ok(MaskHistory::default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use stratus_run::validation::{
        Confusion, NumberMistake, PictureFile, TargetPoint, write_confusion, write_points,
    };

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn shown(epoch: u32) -> MaskEpoch {
        MaskEpoch { epoch, iou: vec![Some(0.5), None] }
    }

    #[test]
    fn masks_of_other_images_are_forgotten() {
        let mut masks = MaskHistory::default();
        let first = names(&["a", "b"]);
        assert!(masks.is_of(&first));
        masks.add(&first, shown(1));
        masks.add(&first, shown(2));
        assert_eq!(masks, MaskHistory { samples: first.clone(), epochs: vec![shown(1), shown(2)] });
        // As many images, but others: two workers divide the batches otherwise than one.
        let other = names(&["a", "c"]);
        assert!(masks.is_of(&first) && !masks.is_of(&other));
        masks.add(&other, shown(3));
        assert_eq!(masks, MaskHistory { samples: other.clone(), epochs: vec![shown(3)] });
        for epoch in 4..100 {
            masks.add(&other, shown(epoch));
        }
        assert_eq!(masks.epochs.len() as u64, MAX_EPOCHS);
        assert_eq!((masks.epochs[0].epoch, masks.epochs.last().unwrap().epoch), (3, 99));
    }

    #[test]
    fn a_resumed_run_has_nothing_of_later_epochs() {
        let root = tempfile::tempdir().unwrap();
        let folder = ValidationDir::new(root.path().join("validation"));
        folder.create().unwrap();
        let mut log = Log::open(&root.path().join("log.txt")).unwrap();
        let write = |epoch: u32, matrix: u32| {
            let predictions = (1..=epoch).map(shown).collect();
            let (samples, colours) = (names(&["a", "b"]), vec![[1, 2, 3]]);
            let images = TaskImages::Segmentation { samples, predictions, colours };
            ValidationImages { epoch, size: [1, 1], workers: 2, images }.write(&folder).unwrap();
            for epoch in 1..=epoch {
                fs::write(folder.pictures(PictureFile::Epoch(epoch)), "").unwrap();
            }
            let counts = [Confusion { class: 0, predicted: 1, count: 1 }];
            write_confusion(&folder.confusion(), matrix, &counts).unwrap();
        };
        let kept = |epochs: u32| MaskHistory {
            samples: names(&["a", "b"]),
            epochs: (1..=epochs).map(shown).collect(),
        };
        write(3, 3);
        assert_eq!(remove_later(&folder, 3, &mut log).unwrap(), kept(3));
        assert!(folder.confusion().exists());
        // Killed between the matrix of epoch 4 and its index.
        write(3, 4);
        assert_eq!(remove_later(&folder, 3, &mut log).unwrap(), kept(3));
        assert!(!folder.confusion().exists());
        write(5, 5);
        assert_eq!(remove_later(&folder, 3, &mut log).unwrap(), kept(3));
        assert!(!folder.confusion().exists() && !folder.pictures(PictureFile::Epoch(4)).exists());
        let index = ValidationImages::read(&folder).unwrap().unwrap();
        assert_eq!((index.epoch, index.workers), (3, 2));
        // A damaged index takes only its own pictures with it.
        write(3, 3);
        fs::write(folder.images(), "{").unwrap();
        assert_eq!(remove_later(&folder, 3, &mut log).unwrap(), MaskHistory::default());
        assert!(folder.confusion().exists() && !folder.images().exists());
    }
    #[test]
    fn a_resumed_run_keeps_the_images_and_points_of_its_last_validation() {
        let root = tempfile::tempdir().unwrap();
        let folder = ValidationDir::new(root.path().to_owned());
        let mut log = Log::open(&root.path().join("log.txt")).unwrap();
        let write = |epoch: u32| {
            let mistake = NumberMistake { file: "a.png".to_owned(), target: 0, number: 1.0, predicted: 3.0 };
            let images = TaskImages::Regression { mistakes: vec![mistake] };
            ValidationImages { epoch, size: [1, 1], workers: 1, images }.write(&folder).unwrap();
            fs::write(folder.pictures(PictureFile::Epoch(epoch)), "").unwrap();
            let point = TargetPoint { target: 0, number: 1.0, predicted: 3.0 };
            write_points(&folder.points(), epoch, &[point]).unwrap();
        };
        write(3);
        remove_later(&folder, 3, &mut log).unwrap();
        let files = [folder.images(), folder.points(), folder.pictures(PictureFile::Epoch(3))];
        assert!(files.iter().all(|file| file.exists()), "{files:?}");
        remove_later(&folder, 2, &mut log).unwrap();
        assert!(!files.iter().any(|file| file.exists()), "{files:?}");
    }
}
