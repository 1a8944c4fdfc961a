//! Key names of PyTorch, Keras and Ultralytics, for suggestions.

/// Names of keys in other programs, without their section, and the key here. Sorted by name.
const FOREIGN_NAMES: &[(&str, &str)] = &[
    ("accumulate_grad_batches", "train.micro_batches"),
    ("amp", "train.precision"),
    ("amsgrad", "optimiser.name"),
    ("arch", "model.name"),
    ("backbone", "model.name"),
    ("batch", "train.batch_size"),
    ("batch_size", "train.batch_size"),
    ("batchsize", "train.batch_size"),
    ("bs", "train.batch_size"),
    ("class_weight", "train.class_weights"),
    ("clip_grad_norm", "train.clip_norm"),
    ("clipnorm", "train.clip_norm"),
    ("cos_lr", "schedule.name"),
    ("cutmix_alpha", "data.augment.cutmix"),
    ("data_dir", "data.path"),
    ("dataset", "data.name"),
    ("device", "train.device"),
    ("dtype", "train.precision"),
    ("ema", "train.ema_decay"),
    ("epochs", "train.epochs"),
    ("fliplr", "data.augment.flip"),
    ("fp16", "train.precision"),
    ("gradient_accumulation_steps", "train.micro_batches"),
    ("gradient_clip_val", "train.clip_norm"),
    ("half", "train.precision"),
    ("hflip", "data.augment.flip"),
    ("horizontal_flip", "data.augment.flip"),
    ("image_size", "data.shape"),
    ("img_size", "data.shape"),
    ("imgsz", "data.shape"),
    ("input_shape", "data.shape"),
    ("input_size", "data.shape"),
    ("j", "data.workers"),
    ("label_smoothing", "train.label_smoothing"),
    ("learning_rate", "optimiser.learning_rate"),
    ("lr", "optimiser.learning_rate"),
    ("lr0", "optimiser.learning_rate"),
    ("lr_scheduler", "schedule.name"),
    ("lrf", "schedule.final_learning_rate"),
    ("max_epochs", "train.epochs"),
    ("max_lr", "optimiser.learning_rate"),
    ("milestones", "schedule.step_epochs"),
    ("mixup_alpha", "data.augment.mixup"),
    ("model", "model.name"),
    ("momentum", "optimiser.momentum"),
    ("nb_epoch", "train.epochs"),
    ("network", "model.name"),
    ("num_classes", "model.classes"),
    ("num_epochs", "train.epochs"),
    ("num_threads", "train.threads"),
    ("num_workers", "data.workers"),
    ("opt", "optimiser.name"),
    ("optim", "optimiser.name"),
    ("optimizer", "optimiser.name"),
    ("patience", "train.early_stopping.patience"),
    ("pretrained", "model.weights"),
    ("random_seed", "train.seed"),
    ("save_period", "checkpoint.every_seconds"),
    ("scheduler", "schedule.name"),
    ("seed", "train.seed"),
    ("step_size", "schedule.step_epochs"),
    ("threads", "train.threads"),
    ("train_dir", "data.path"),
    ("use_amp", "train.precision"),
    ("warmup", "schedule.warmup_epochs"),
    ("warmup_epochs", "schedule.warmup_epochs"),
    ("wd", "optimiser.weight_decay"),
    ("weight_decay", "optimiser.weight_decay"),
    ("weights", "model.weights"),
    ("workers", "data.workers"),
];

/// The key for a name of another program, with or without its section there.
pub fn key_of(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let last = name.rsplit('.').next()?;
    let found = FOREIGN_NAMES.binary_search_by(|(foreign, _)| (*foreign).cmp(last)).ok()?;
    FOREIGN_NAMES.get(found).map(|(_, key)| *key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KEYS;

    #[test]
    fn names_are_sorted_and_map_to_keys() {
        assert!(FOREIGN_NAMES.is_sorted_by(|a, b| a.0 < b.0));
        for (name, key) in FOREIGN_NAMES {
            assert!(KEYS.iter().any(|known| known.name == *key), "{name}: there is no key {key}");
            assert!(!KEYS.iter().any(|known| known.name == *name), "{name} is a key");
        }
    }

    #[test]
    fn finds_foreign_names_with_sections_and_spellings() {
        for (name, key) in [
            ("lr", Some("optimiser.learning_rate")),
            ("optimizer.lr", Some("optimiser.learning_rate")),
            ("LR", Some("optimiser.learning_rate")),
            ("train.num-workers", Some("data.workers")),
            ("optimizer", Some("optimiser.name")),
            ("train.epoch", None),
            ("", None),
            ("lr.x", None),
        ] {
            assert_eq!(key_of(name), key, "{name}");
        }
    }
}
