"""Reference programs of the generated problems: each docstring is a problem's statement, each body its solution.

The text of a body is handed out as a program, so it is written as a program would be, with nothing from outside.
"""

# ruff: noqa: B905, RUF007


def longest_run(numbers):
    """Find the length of the longest stretch of equal neighbours in numbers; 0 for an empty list."""
    best = count = 0
    previous = None
    for number in numbers:
        count = count + 1 if number == previous else 1
        previous = number
        best = max(best, count)
    return best


def run_lengths(text):
    """Replace each stretch of equal letters of text by the letter and the length of the stretch: aaab gives a3b1."""
    parts = []
    position = 0
    while position < len(text):
        end = position
        while end < len(text) and text[end] == text[position]:
            end += 1
        parts.append(text[position] + str(end - position))
        position = end
    return "".join(parts)


def shift_letters(text, shift):
    """Move each letter of text (lower case) on by shift places in the alphabet; after z comes a. A negative shift goes
    back.
    """
    result = ""
    for letter in text:
        result += chr((ord(letter) - 97 + shift) % 26 + 97)
    return result


def bracket_depth(text):
    """text consists of round brackets. Find how deep they are nested, or -1 where they do not match."""
    depth = deepest = 0
    for symbol in text:
        depth += 1 if symbol == "(" else -1
        if depth < 0:
            return -1
        deepest = max(deepest, depth)
    return deepest if depth == 0 else -1


def rotate_right(numbers, steps):
    """Move every number steps places to the right; what leaves at the end comes in at the front."""
    if not numbers:
        return []
    steps %= len(numbers)
    return numbers[len(numbers) - steps :] + numbers[: len(numbers) - steps]


def window_maxima(numbers, width):
    """For each window of width neighbours in numbers, from left to right, find the largest of them."""
    return [max(numbers[start : start + width]) for start in range(len(numbers) - width + 1)]


def nth_largest(numbers, n):
    """Find the n-th largest of the different values in numbers, or -1 where there are fewer."""
    distinct = sorted(set(numbers), reverse=True)
    return distinct[n - 1] if n <= len(distinct) else -1


def count_change(amount, coins):
    """In how many ways can coins, as many of each as you like, make amount? The order of coins does not count."""
    ways = [1] + [0] * amount
    for coin in coins:
        for total in range(coin, amount + 1):
            ways[total] += ways[total - coin]
    return ways[amount]


def rising_subsequence(numbers):
    """Find the length of the longest strictly rising subsequence of numbers (not always neighbours)."""
    lengths = []
    for index, number in enumerate(numbers):
        before = [lengths[j] for j in range(index) if numbers[j] < number]
        lengths.append(max(before, default=0) + 1)
    return max(lengths, default=0)


def shortest_walk(grid):
    """0 is free, 1 is a wall. Find the fewest steps (up, down, left, right) from the top left to the bottom right
    cell, or -1 where there is no way.
    """
    rows, columns = len(grid), len(grid[0])
    frontier, seen, steps = [(0, 0)], {(0, 0)}, 0
    while frontier:
        if (rows - 1, columns - 1) in frontier:
            return steps
        reached = []
        for row, column in frontier:
            for near in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
                inside = 0 <= near[0] < rows and 0 <= near[1] < columns
                if inside and near not in seen and grid[near[0]][near[1]] == 0:
                    seen.add(near)
                    reached.append(near)
        frontier = reached
        steps += 1
    return -1


def turn_grid(grid):
    """Turn grid by a quarter to the right (clockwise)."""
    return [list(column) for column in zip(*grid[::-1])]


def merge_intervals(grid):
    """Each row of grid is an interval, its low and its high end. Merge those that overlap or touch in a point; give
    the result in rising order.
    """
    merged = []
    for low, high in sorted(grid):
        if merged and low <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], high)
        else:
            merged.append([low, high])
    return merged


def in_base(number, base):
    """Write number in the given base, with the digits 0 to 9 and a to f."""
    digits = ""
    while number:
        digits = "0123456789abcdef"[number % base] + digits
        number //= base
    return digits or "0"


def commonest_word(words):
    """Find the word that occurs most often; among several the first in alphabetical order."""
    return min(set(words), key=lambda word: (-words.count(word), word))


def last_in_circle(count, step):
    """count children stand in a circle, numbered from 1. Counting starts at child 1, and every step-th child leaves.
    Which one is left at the end?
    """
    survivor = 0
    for size in range(2, count + 1):
        survivor = (survivor + step) % size
    return survivor + 1


def count_primes(low, high):
    """Count the prime numbers from low to high, both included."""
    found = 0
    for number in range(max(low, 2), high + 1):
        divisor = 2
        while divisor * divisor <= number and number % divisor:
            divisor += 1
        found += divisor * divisor > number
    return found


def edit_distance(text, other):
    """Find the fewest insertions, deletions and replacements of one letter that turn text into other."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(text, 1):
        above, row = row, [i]
        for j, target in enumerate(other, 1):
            row.append(min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != target)))
    return row[-1]


def largest_block_sum(numbers):
    """Find the largest sum of one or more neighbours in numbers."""
    best = current = numbers[0]
    for number in numbers[1:]:
        current = max(current + number, number)
        best = max(best, current)
    return best


def pairs_with_sum(numbers, target):
    """Count the pairs of places in numbers whose values add up to target."""
    return sum(numbers[i] + numbers[j] == target for i in range(len(numbers)) for j in range(i))


def anagram_groups(words):
    """Words that consist of the same letters belong to one group. Count the groups."""
    return len({"".join(sorted(word)) for word in words})


def some_subset_sums(numbers, target):
    """Is there a choice of some of the numbers (or none) that adds up to target?"""
    reachable = {0}
    for number in numbers:
        reachable |= {total + number for total in reachable}
    return target in reachable


def gcd_of_gaps(numbers):
    """Find the greatest common divisor of the distances between neighbours in numbers; 0 where all are equal."""
    result = 0
    for first, second in zip(numbers, numbers[1:]):
        gap = abs(second - first)
        while gap:
            result, gap = gap, result % gap
    return result


def mirror_parts(text):
    """Count the parts of text of two or more neighbouring letters that read the same backwards; equal parts at
    different places count each.
    """
    count = 0
    for start in range(len(text)):
        for end in range(start + 2, len(text) + 1):
            count += text[start:end] == text[start:end][::-1]
    return count
