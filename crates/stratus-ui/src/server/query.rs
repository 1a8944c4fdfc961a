//! The parameters of addresses.

/// The parameters of a query.
pub struct QueryPairs<'a>(&'a str);

impl<'a> QueryPairs<'a> {
    /// The parameters of the query of an address.
    pub fn of(query: Option<&'a str>) -> Self {
        Self(query.unwrap_or_default())
    }

    /// The decoded value of the first parameter of a name; `None` if there is none, or it is not UTF-8.
    pub fn get(&self, name: &str) -> Option<String> {
        let mut pairs = self.0.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let value = pairs.find(|(key, _)| *key == name)?.1;
        let mut decoded = Vec::with_capacity(value.len());
        let mut bytes = value.bytes();
        while let Some(byte) = bytes.next() {
            decoded.push(match byte {
                b'+' => b' ',
                b'%' => {
                    let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                    let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                    u8::try_from(16 * high + low).ok()?
                }
                other => other,
            });
        }
        String::from_utf8(decoded).ok()
    }

    /// The number of a parameter.
    pub fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.get(name)?.parse().ok()
    }

    /// The parts of a parameter between commas; empty without it.
    pub fn list(&self, name: &str, max: usize) -> Vec<String> {
        let value = self.get(name).unwrap_or_default();
        value.split(',').filter(|part| !part.is_empty()).take(max).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let pairs = QueryPairs::of(Some("a=1&b=x%20y+z&c=%C3%A9&bad=%zz&half=%c3&end=%4&list=a,,b,c&empty"));
        assert_eq!(pairs.number::<u64>("a"), Some(1));
        assert_eq!(pairs.get("b").as_deref(), Some("x y z"));
        assert_eq!(pairs.get("c").as_deref(), Some("é"));
        assert_eq!(pairs.list("list", 2), ["a", "b"]);
        assert_eq!(pairs.get("empty").as_deref(), Some(""));
        for name in ["bad", "half", "end", "none"] {
            assert_eq!(pairs.get(name), None, "{name}");
        }
        assert_eq!(QueryPairs::of(None).get("a"), None);
    }
}
