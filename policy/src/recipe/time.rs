//! Times as signatures write them (UTC).

/// A moment in parts.
pub(super) struct Civil {
    year: u64,
    month: u64,
    day: u64,
    second: u64,
}

impl Civil {
    /// The moment of milliseconds since 1970.
    pub(super) const fn of(now_ms: u64) -> Self {
        let (days, second) = (now_ms / 86_400_000, now_ms / 1000 % 86_400);
        // Days since 1 March of the year 0, in eras of 400 years.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year =
            (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
        let shifted = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * shifted + 2) / 5 + 1;
        let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
        let year = year + era * 400 + if month <= 2 { 1 } else { 0 };
        Self { year, month, day, second }
    }

    /// `20150830`.
    pub(super) fn date(&self) -> String {
        format!("{:04}{:02}{:02}", self.year, self.month, self.day)
    }

    /// `20150830T123600Z`.
    pub(super) fn basic(&self) -> String {
        let (hour, minute, second) = self.clock();
        format!("{}T{hour:02}{minute:02}{second:02}Z", self.date())
    }

    /// `2015-08-30T12:36:00Z` (RFC 3339).
    pub(super) fn extended(&self) -> String {
        let (hour, minute, second) = self.clock();
        let Self { year, month, day, .. } = self;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }

    const fn clock(&self) -> (u64, u64, u64) {
        (self.second / 3600, self.second / 60 % 60, self.second % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_440_938_160_000, "2015-08-30T12:36:00Z"),
            (951_782_399_999, "2000-02-28T23:59:59Z"),
            (951_868_799_000, "2000-02-29T23:59:59Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00Z"),
            (1_798_675_200_000, "2026-12-31T00:00:00Z"),
        ] {
            assert_eq!(Civil::of(ms).extended(), expected);
        }
        assert_eq!(Civil::of(1_440_938_160_000).basic(), "20150830T123600Z");
        assert_eq!(Civil::of(1_440_938_160_000).date(), "20150830");
    }
}
