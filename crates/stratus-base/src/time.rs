//! Times and dates in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// A time as `2026-01-31T09:05:07.123Z`: UTC, RFC 3339, milliseconds. Times before 1970 are clamped to 1970.
#[must_use]
pub fn timestamp(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// The Gregorian date `days` after 1 January 1970.
///
/// Years are counted from 1 March, so that the leap day is the last of its year; 400 years are 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    // There are 719,468 days between 1 March of year 0 and 1 January 1970.
    let days = days + 719_468;
    let (era, in_era) = (days / 146_097, days % 146_097);
    let year_of_era = (in_era - in_era / 1_460 + in_era / 36_524 - in_era / 146_096) / 365;
    let in_year = in_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March have 31, 30, 31, 30, 31 days, repeating: 153 days in five months.
    let from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// The days from 1 January 1970 to a Gregorian date; `None` for earlier or invalid dates.
#[must_use]
pub fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    // Years and months are counted as in `date`.
    let year_from_march = year - u64::from(month <= 2);
    let from_march = if month > 2 { month - 3 } else { month + 9 };
    let (era, of_era) = (year_from_march / 400, year_from_march % 400);
    let in_year = (153 * from_march + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + in_year;
    let days = days.checked_sub(719_468)?;
    (date(days) == (year, month, day)).then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_correct_for_eight_centuries() {
        let (mut year, mut month, mut day) = (1970, 1, 1);
        for days in 0..292_194 {
            assert_eq!(date(days), (year, month, day));
            assert_eq!(super::days(year, month, day), Some(days));
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            day += 1;
            if day > length[month as usize - 1] {
                (month, day) = (month + 1, 1);
            }
            if month > 12 {
                (year, month) = (year + 1, 1);
            }
        }
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(1_000_000_000)), "2001-09-09T01:46:40.000Z");
        for [year, month, day] in [[1969, 12, 31], [2026, 2, 29], [2026, 13, 1], [2026, 4, 31], [2026, 1, 0]]
        {
            assert_eq!(days(year, month, day), None, "{year}-{month}-{day}");
        }
    }
}
