export default async function sum(numbers, job) {
  console.log(`${job.id}, attempt ${job.attempt}`);
  return numbers.reduce((total, number) => total + number, 0);
}
