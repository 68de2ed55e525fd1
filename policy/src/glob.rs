//! The one star of the policy language: matching, and whether two patterns can meet.

/// Whether `*` may stand for a byte.
pub(crate) type Allowed = fn(u8) -> bool;

/// Matches bytes against a pattern in which each `*` stands for any run of allowed bytes.
///
/// Greedy with one point of return. That is complete: if a later place of a piece works, the first
/// one does too, because the bytes between were allowed to the star before it.
pub(crate) fn matches(pattern: &[u8], text: &[u8], allowed: Allowed) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while let Some(&byte) = text.get(t) {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p + 1, t));
                p += 1;
            }
            Some(&literal) if literal == byte => {
                p += 1;
                t += 1;
            }
            Some(_) | None => {
                let Some((after_star, from)) = back else { return false };
                if !text.get(from).is_some_and(|&b| allowed(b)) {
                    return false;
                }
                back = Some((after_star, from + 1));
                (p, t) = (after_star, from + 1);
            }
        }
    }
    pattern.get(p..).is_some_and(|rest| rest.iter().all(|&c| c == b'*'))
}

/// Whether some text matches both patterns. May say yes where only bytes that `*` refuses would do.
pub(crate) fn meet(a: &[u8], b: &[u8]) -> bool {
    // `row[j]` says whether the rest of `a` from here and `b[j..]` can meet; filled from the ends.
    let tail_of_stars = |s: &[u8]| s.iter().all(|&c| c == b'*');
    let mut below: Vec<bool> =
        (0..=b.len()).map(|j| b.get(j..).is_some_and(tail_of_stars)).collect();
    for (i, &x) in a.iter().enumerate().rev() {
        let mut row = vec![false; b.len() + 1];
        if let Some(last) = row.last_mut() {
            *last = a.get(i..).is_some_and(tail_of_stars);
        }
        for (j, &y) in b.iter().enumerate().rev() {
            let at = |row: &[bool], j: usize| row.get(j).copied().unwrap_or(false);
            let met = if x == b'*' || y == b'*' {
                // One star takes nothing, or takes what the other side has next.
                at(&below, j) || at(&row, j + 1)
            } else {
                x == y && at(&below, j + 1)
            };
            if let Some(cell) = row.get_mut(j) {
                *cell = met;
            }
        }
        below = row;
    }
    below.first().copied().unwrap_or(false)
}

/// How narrow a pattern is: without star first, then by literal bytes.
pub(crate) fn rank(pattern: &[u8]) -> (bool, usize) {
    let literal = pattern.iter().filter(|&&c| c != b'*').count();
    (literal == pattern.len(), literal)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any(_: u8) -> bool {
        true
    }

    #[test]
    fn stars_match_runs() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*c", "ab", false),
            ("*ab", "aab", true),
            ("a*b*c", "aXbYbZc", true),
            ("**", "x", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), any), expected, "{pattern}");
        }
        assert!(!matches(b"a*", b"a;b", |b| b != b';'));
        assert!(matches(b"a;*", b"a;b", |b| b != b';'));
        assert!(matches(b"*;*", b"x;y", |b| b != b';'));
    }

    /// The slow and obvious matcher.
    fn reference(pattern: &[u8], text: &[u8], allowed: Allowed) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, None) => true,
            (Some((b'*', rest)), _) if reference(rest, text, allowed) => true,
            (Some((b'*', _)), Some((&t, more))) => allowed(t) && reference(pattern, more, allowed),
            (Some((&p, rest)), Some((&t, more))) => p == t && reference(rest, more, allowed),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn greedy_equals_the_obvious(pattern in "[ab;*]{0,8}", text in "[ab;]{0,10}") {
            let allowed: Allowed = |b| b != b';';
            prop_assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes(), allowed),
                reference(pattern.as_bytes(), text.as_bytes(), allowed)
            );
        }

        #[test]
        fn patterns_that_match_one_text_meet(
            a in "[ab*]{0,6}", b in "[ab*]{0,6}", text in "[ab]{0,8}",
        ) {
            let both = matches(a.as_bytes(), text.as_bytes(), any)
                && matches(b.as_bytes(), text.as_bytes(), any);
            prop_assert!(!both || meet(a.as_bytes(), b.as_bytes()));
            prop_assert_eq!(meet(a.as_bytes(), b.as_bytes()), meet(b.as_bytes(), a.as_bytes()));
        }
    }
}
