//! Plants mutants in a source: each becomes a choice at run time, next to the program as it was.

use std::ops::Range;

use super::syntax::Place;

/// A source with mutants in it.
pub(super) struct Planted {
    pub(super) text: String,
    /// The bytes that exist for one mutant only.
    own: Vec<(Range<usize>, u32)>,
    /// The expressions, bodies and matches that have alternatives, with all their mutants.
    choices: Vec<(Range<usize>, Vec<u32>)>,
}

impl Planted {
    /// The mutants to which an error at these bytes of the text belongs; `true` if its own text is wrong.
    pub(super) fn blame(&self, at: &Range<usize>) -> Option<(Vec<u32>, bool)> {
        let touches = |range: &Range<usize>| range.start <= at.start && at.end <= range.end;
        let own = self.own.iter().filter(|(range, _)| touches(range)).min_by_key(|(range, _)| range.len());
        if let Some((_, number)) = own {
            return Some((vec![*number], true));
        }
        let choices = self.choices.iter().filter(|(range, _)| touches(range));
        choices.min_by_key(|(range, _)| range.len()).map(|(_, numbers)| (numbers.clone(), false))
    }
}

/// One change of the source. Several at one place come in the order of `turn`.
struct Insertion {
    at: usize,
    turn: (bool, usize),
    pieces: Vec<(String, Option<u32>)>,
    choice: Option<usize>,
}

/// Mutants that share a range of the source.
type Grouped<T> = Vec<(Range<usize>, Vec<T>)>;

fn group<T>(groups: &mut Grouped<T>, range: &Range<usize>, member: T) {
    match groups.iter_mut().find(|(known, _)| known == range) {
        Some((_, members)) => members.push(member),
        None => groups.push((range.clone(), vec![member])),
    }
}

/// Plants what can be planted: `mutants` are places with numbers and replacements.
pub(super) fn plant(source: &str, mutants: &[(u32, Place, String)]) -> Planted {
    let mut insertions = Vec::new();
    let (mut choices, mut bodies, mut matches) = (Grouped::new(), Grouped::new(), Grouped::new());
    for (number, place, replacement) in mutants {
        match place {
            Place::Nowhere(_) => {}
            Place::Body(range) => group(&mut bodies, range, (*number, replacement)),
            Place::Expression(range, new) => group(&mut choices, range, (*number, new)),
            Place::Arm { guard: None, behind, whole } => {
                group(&mut matches, whole, *number);
                let text = format!(" if !crate::planted::is({number})");
                let pieces = vec![(text, Some(*number))];
                insertions.push(Insertion { at: *behind, turn: (true, 0), pieces, choice: None });
            }
            Place::Arm { guard: Some(guard), whole, .. } => {
                group(&mut matches, whole, *number);
                let text = format!("!crate::planted::is({number}) && (");
                let pieces = vec![(text, Some(*number))];
                insertions.push(Insertion { at: guard.start, turn: (true, 0), pieces, choice: None });
                let pieces = vec![(")".to_owned(), None)];
                insertions.push(Insertion { at: guard.end, turn: (false, usize::MAX), pieces, choice: None });
            }
        }
    }
    for (index, (range, alternatives)) in choices.iter().enumerate() {
        let numbers: Vec<String> = alternatives.iter().map(|(number, _)| number.to_string()).collect();
        // The program as it was comes first, so that types are inferred from it and errors are those of the mutants.
        let before = format!("(match crate::planted::which(&[{}]) {{ 0 => (", numbers.join(", "));
        let mut after = vec![("),".to_owned(), None)];
        for (at, (number, new)) in alternatives.iter().enumerate() {
            let last = at + 1 == alternatives.len();
            let pattern = if last { " _".to_owned() } else { format!(" {}", at + 1) };
            after.push((format!("{pattern} => ("), None));
            after.push(((*new).to_owned(), Some(*number)));
            after.push(("),".to_owned(), None));
        }
        after.push((" })".to_owned(), None));
        let (outer_first, inner_first) = (usize::MAX - range.len(), range.len());
        let pieces = vec![(before, None)];
        insertions.push(Insertion {
            at: range.start,
            turn: (true, outer_first),
            pieces,
            choice: Some(index),
        });
        insertions.push(Insertion {
            at: range.end,
            turn: (false, inner_first),
            pieces: after,
            choice: Some(index),
        });
    }
    for (index, (range, returns)) in bodies.iter().enumerate() {
        let text = |(number, replacement): &(u32, &String)| {
            (format!(" if crate::planted::is({number}) {{ return {replacement}; }}"), Some(*number))
        };
        let pieces = returns.iter().map(text).collect();
        let choice = Some(choices.len() + index);
        insertions.push(Insertion { at: range.start, turn: (true, 0), pieces, choice });
        insertions.push(Insertion { at: range.end, turn: (false, usize::MAX), pieces: Vec::new(), choice });
    }
    for (index, (range, _)) in matches.iter().enumerate() {
        let choice = Some(choices.len() + bodies.len() + index);
        let turn = (true, usize::MAX - range.len());
        insertions.push(Insertion { at: range.start, turn, pieces: Vec::new(), choice });
        insertions.push(Insertion { at: range.end, turn: (false, range.len()), pieces: Vec::new(), choice });
    }
    insertions.sort_by_key(|insertion| (insertion.at, insertion.turn));

    let mut planted = Planted {
        text: String::new(),
        own: Vec::new(),
        choices: choices
            .iter()
            .chain(&bodies)
            .map(|(_, members)| (0..0, members.iter().map(|(n, _)| *n).collect()))
            .chain(matches.into_iter().map(|(_, numbers)| (0..0, numbers)))
            .collect(),
    };
    let mut done = 0;
    for Insertion { at, turn: (begins, _), pieces, choice } in insertions {
        planted.text.push_str(&source[done..at]);
        done = at;
        if let (Some(choice), true) = (choice, begins) {
            planted.choices[choice].0.start = planted.text.len();
        }
        for (text, number) in pieces {
            let start = planted.text.len();
            planted.text.push_str(&text);
            planted.own.extend(number.map(|number| (start..planted.text.len(), number)));
        }
        if let (Some(choice), false) = (choice, begins) {
            planted.choices[choice].0.end = planted.text.len();
        }
    }
    planted.text.push_str(&source[done..]);
    planted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_expressions_are_planted_inside_each_other() {
        let source = "a + b + c";
        let mutants = [
            (1, Place::Expression(0..9, "(a + b) - (c)".to_owned()), "-".to_owned()),
            (2, Place::Expression(0..5, "(a) - (b)".to_owned()), "-".to_owned()),
        ];
        let planted = plant(source, &mutants);
        let inner = "(match crate::planted::which(&[2]) { 0 => (a + b), _ => ((a) - (b)), })";
        let outer =
            format!("(match crate::planted::which(&[1]) {{ 0 => ({inner} + c), _ => ((a + b) - (c)), }})");
        assert_eq!(planted.text, outer);
        let at = planted.text.find("(a) - (b)").unwrap();
        assert_eq!(planted.blame(&(at..at + 3)), Some((vec![2], true)));
        let at = planted.text.find("a + b)").unwrap();
        assert_eq!(planted.blame(&(at..at + 1)), Some((vec![2], false)));
        assert_eq!(planted.blame(&(0..1)), Some((vec![1], false)));
    }

    #[test]
    fn an_arm_keeps_its_guard() {
        let source = "x if g => 1";
        let place = Place::Arm { guard: Some(5..6), behind: 1, whole: 0..11 };
        let guard = (2, Place::Expression(5..6, "true".to_owned()), "true".to_owned());
        let planted = plant(source, &[(1, place, String::new()), guard]);
        let inner = "(match crate::planted::which(&[2]) { 0 => (g), _ => (true), })";
        assert_eq!(planted.text, format!("x if !crate::planted::is(1) && ({inner}) => 1"));
    }
}
