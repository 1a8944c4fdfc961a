//! The price of an hour of a run.

use super::Catalogue;
use crate::error::{Error, Result};
use std::sync::OnceLock;

/// The price of an hour of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPrice {
    /// The price.
    pub per_hour: f64,
    /// Its currency, if it is known.
    pub currency: Option<String>,
}

impl RunPrice {
    /// The price of a run with these values of `train.instance` and `train.price_per_hour`: that of the
    /// instance in the built-in catalogue, on demand if that is known, or the given price; `None` without
    /// either.
    ///
    /// # Errors
    /// If the instance or its price is unknown.
    pub fn of_run(instance: Option<&str>, per_hour: Option<f64>) -> Result<Option<Self>> {
        static CATALOGUE: OnceLock<Catalogue> = OnceLock::new();
        let Some(name) = instance else {
            return Ok(per_hour.map(|per_hour| Self { per_hour, currency: None }));
        };
        let catalogue = match CATALOGUE.get() {
            Some(catalogue) => catalogue,
            None => {
                let builtin = Catalogue::builtin()?;
                CATALOGUE.get_or_init(|| builtin)
            }
        };
        let machine = catalogue.find(name)?;
        let priced = machine.instance.as_ref().and_then(|instance| Some((instance, instance.price(false)?)));
        let (instance, price) = priced.ok_or_else(|| Error::NoPrice { machine: name.to_owned() })?;
        Ok(Some(Self { per_hour: price.per_hour, currency: instance.currency.clone() }))
    }

    /// The price of a time.
    #[must_use]
    pub fn of_seconds(&self, seconds: f64) -> f64 {
        self.per_hour * seconds / 3600.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_and_hours_have_prices() {
        let own = RunPrice { per_hour: 1.5, currency: None };
        assert_eq!(RunPrice::of_run(None, Some(1.5)).unwrap(), Some(own.clone()));
        assert_eq!((own.of_seconds(7200.0), RunPrice::of_run(None, None).unwrap()), (3.0, None));
        // The price of the instance has precedence.
        let instance = RunPrice::of_run(Some("g5.xlarge"), Some(1000.0)).unwrap().unwrap();
        assert!(instance.per_hour > 0.0 && instance.per_hour < 1000.0, "{instance:?}");
        assert_eq!(instance.currency.as_deref(), Some("USD"));
        assert!(matches!(RunPrice::of_run(Some("no-such-one"), None), Err(Error::UnknownMachine { .. })));
        assert!(matches!(RunPrice::of_run(Some("v100-16gb"), None), Err(Error::NoPrice { .. })));
    }
}
